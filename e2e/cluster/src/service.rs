//! What a Service is in a cluster: one address before several operators.
//!
//! Owns: passing connections on to one of them after the other. Knows nothing of what they carry.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::spawn;

/// See the module.
pub struct Service {
    address: SocketAddr,
    backends: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    /// Listens at this address, where pods reach it.
    pub fn open(host: &str) -> Self {
        let listener = listen(host);
        let address = listener.local_addr().expect("it is bound");
        let backends: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let theirs = Arc::clone(&backends);
        // It ends with the process.
        spawn(move || {
            for client in listener.incoming().flatten() {
                let mut backends = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                if !backends.is_empty() {
                    backends.rotate_left(1);
                }
                let backends = backends.clone();
                spawn(move || pass_on(client, &backends));
            }
        });
        Self { address, backends }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Addresses of one more operator: behind the Service, with the same port, and for its metrics. No other process of
    /// this machine takes them while the operator is dead.
    pub fn add(&self) -> (SocketAddr, SocketAddr) {
        let mut backends = self.backends.lock().unwrap_or_else(PoisonError::into_inner);
        let n = u8::try_from(2 + backends.len()).expect("there are few operators");
        let own = |net| {
            let ip = IpAddr::V4(Ipv4Addr::new(127, 0, net, n));
            SocketAddr::new(ip, self.address.port())
        };
        backends.push(own(0));
        (own(0), own(1))
    }
}

fn pass_on(client: TcpStream, backends: &[SocketAddr]) {
    // One that does not run refuses.
    let server = backends.iter().find_map(|it| TcpStream::connect(it).ok());
    let Some(server) = server else { return };
    let copies = (client.try_clone(), server.try_clone());
    let (Ok(client_too), Ok(server_too)) = copies else {
        return;
    };
    spawn(move || copy(client_too, server_too));
    copy(server, client);
}

/// Until one of them is done.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Both ends are gone in the end, and how does not matter.
    drop(from.set_nodelay(true));
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Both));
    drop(from.shutdown(Shutdown::Both));
}

/// At a port below those that connections take by themselves: a port of an operator must be free after its death.
fn listen(host: &str) -> TcpListener {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % 100).unwrap_or_default();
    let mut ports =
        (0..100).map(|_| 20_000 + process * 100 + NEXT.fetch_add(1, Ordering::Relaxed) % 100);
    let listener = ports.find_map(|port| TcpListener::bind((host, port)).ok());
    listener.expect("tests of the operator as a process run by e2e/cluster/inside")
}
