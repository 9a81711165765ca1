// Doors from this machine into the cluster's network namespace.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// relay listens in the network namespace that the file outside stands for, and connects each client
// to an address in the namespace that it was started in. A door is LISTEN=TARGET; when it is open, the
// address that it has (port 0 stands for any) is printed.
func relay(outside string, doors []string) error {
	ended := make(chan error)
	for _, door := range doors {
		listen, target, ok := strings.Cut(door, "=")
		if !ok {
			return fmt.Errorf("%s: want LISTEN=TARGET", door)
		}
		listener, err := listenIn(outside, listen)
		if err != nil {
			return fmt.Errorf("%s: %w", door, err)
		}
		fmt.Println(listener.Addr())
		go func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					ended <- err
					return
				}
				go connect(client.(*net.TCPConn), target)
			}
		}()
	}
	return <-ended
}

// listenIn opens a listener in another network namespace: a socket stays in the one that its thread
// was in when it was made.
func listenIn(namespace, address string) (net.Listener, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	there, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // the thread would serve others in the wrong namespace
	}
	return listener, err
}

// connect copies both ways; the end of one direction is passed on, the other goes on.
func connect(client *net.TCPConn, target string) {
	defer client.Close()
	connection, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	server := connection.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(client, server)
	_ = client.CloseWrite()
	<-done
}
