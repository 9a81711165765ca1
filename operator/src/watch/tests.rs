use std::collections::VecDeque;

use futures::stream;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ListMeta;
use serde_json::json;
use tokio::sync::mpsc;

use super::*;

/// Names, the token of the next page, and the version.
type Names = (Vec<&'static str>, Option<&'static str>, &'static str);

/// An API server that answers what is written here, and notes what it is asked.
#[derive(Clone, Default)]
struct Script {
    pages: Arc<Mutex<VecDeque<Names>>>,
    watches: Arc<Mutex<VecDeque<Vec<serde_json::Value>>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// So many lists are forbidden first.
    forbidden: Arc<Mutex<usize>>,
}

impl Script {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }
}

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

impl Source for Script {
    type Value = ConfigMap;

    async fn list(&self, params: &ListParams) -> kube::Result<Page<ConfigMap>> {
        let token = params.continue_token.as_deref().unwrap_or("begin");
        self.note(format!("list {token}"));
        {
            let mut forbidden = self.forbidden.lock().unwrap();
            if *forbidden > 0 {
                *forbidden -= 1;
                let status = Status::failure("no right", "Forbidden").with_code(403);
                return Err(kube::Error::Api(status.boxed()));
            }
        }
        let page = self.pages.lock().unwrap().pop_front();
        let Some((names, next, version)) = page else {
            return std::future::pending().await;
        };
        Ok(Page {
            metadata: ListMeta {
                continue_: next.map(str::to_owned),
                resource_version: Some(version.to_owned()),
                ..ListMeta::default()
            },
            items: names
                .into_iter()
                .map(|name| Item::Read(map(name)))
                .collect(),
        })
    }

    async fn watch(&self, _: &WatchParams, version: &str) -> kube::Result<Events<ConfigMap>> {
        self.note(format!("watch {version}"));
        let events = self.watches.lock().unwrap().pop_front();
        let Some(events) = events else {
            return Ok(stream::pending().boxed());
        };
        let events = events
            .into_iter()
            .map(|line| Ok(item::event(&line.to_string()).unwrap()));
        Ok(stream::iter(events).boxed())
    }
}

fn changed(kind: &str, name: &str, version: &str) -> serde_json::Value {
    let metadata = json!({"name": name, "resourceVersion": version});
    json!({"type": kind, "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}})
}

fn told(event: &Event<ConfigMap>) -> String {
    let name = |map: &ConfigMap| map.metadata.name.clone().unwrap();
    match event {
        Event::Init => "begin".to_owned(),
        Event::InitApply(map) => format!("there is {}", name(map)),
        Event::InitDone => "end".to_owned(),
        Event::Apply(map) => format!("changed {}", name(map)),
        Event::Delete(map) => format!("deleted {}", name(map)),
    }
}

#[tokio::test]
async fn kf_o22_watch_goes_on_where_it_was_and_begins_anew_when_that_is_too_old() {
    let script = Script::default();
    script.pages.lock().unwrap().extend([
        (vec!["a", "b"], Some("more"), "10"),
        (vec!["c"], None, "10"),
        (vec!["b"], None, "90"),
    ]);
    let bookmark = json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "40"},
    }});
    let gone = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version",
    }});
    script.watches.lock().unwrap().extend([
        vec![
            changed("MODIFIED", "a", "20"),
            changed("DELETED", "c", "30"),
        ],
        vec![bookmark],
        vec![gone],
    ]);
    let (tell, mut tells) = mpsc::unbounded_channel();
    let pulses = Pulses::default();
    let following = tokio::spawn({
        let (source, pulse) = (script.clone(), pulses.begin());
        async move {
            follow(source, None, pulse, move |event| {
                drop(tell.send(told(&event)));
            })
            .await
        }
    });

    let mut all = Vec::new();
    while all.iter().filter(|it| *it == "end").count() < 2 {
        all.push(tells.recv().await.unwrap());
    }

    assert_eq!(
        all,
        [
            "begin",
            "there is a",
            "there is b",
            "there is c",
            "end",
            "changed a",
            "deleted c",
            "begin",
            "there is b",
            "end"
        ]
    );
    let asked = script.asked.lock().unwrap().clone();
    let until_then = [
        "list begin",
        "list more",
        "watch 10",
        "watch 30",
        "watch 40",
        "list begin",
    ];
    assert_eq!(asked[..6], until_then);
    following.abort();
}

/// One answer of an API server to each list and each watch, then none.
fn api_of(answers: &[(&'static str, String)]) -> Api<ConfigMap> {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let next = answers.lock().unwrap().pop_front();
        async move {
            let Some((asked, body)) = next else {
                return std::future::pending().await;
            };
            assert!(query.contains(asked), "{query}");
            hyper::Response::builder().body(kube::client::Body::from(body.into_bytes()))
        }
    });
    Api::all(Client::new(service, "team"))
}

#[tokio::test]
async fn object_that_cannot_be_read_keeps_nobody_from_hearing_of_the_others() {
    let object = |name: &str, data: serde_json::Value| {
        let metadata = json!({"name": name, "resourceVersion": "20"});
        json!({"metadata": metadata, "data": data})
    };
    let wrong = object("wrong", json!({"a": 1}));
    let list = json!({
        "metadata": {"resourceVersion": "10"},
        "items": [object("a", json!({})), wrong, object("b", json!({}))],
    });
    let lines = [
        json!({"type": "MODIFIED", "object": wrong}).to_string(),
        json!({"type": "MODIFIED", "object": object("a", json!({}))}).to_string(),
        r#"{"type": "ADDED", "object": {"meta"#.to_owned(),
    ];
    let api = api_of(&[
        ("limit=500", list.to_string()),
        ("resourceVersion=10", lines.join("\n")),
        ("resourceVersion=20", "no event".to_owned()),
        ("limit=500", list.to_string()),
    ]);
    let (tell, mut tells) = mpsc::unbounded_channel();
    let pulse = Pulses::default().begin();
    let following = tokio::spawn(async move {
        follow(Whole(api), None, pulse, move |event| {
            drop(tell.send(told(&event)));
        })
        .await
    });

    let mut all = Vec::new();
    while all.iter().filter(|it| *it == "end").count() < 2 {
        all.push(tells.recv().await.unwrap());
    }

    let list = ["begin", "there is a", "there is b", "end"];
    assert_eq!(all, [&list[..], &["changed a"], &list[..]].concat());
    following.abort();
}

/// Of a namespace that is not there no other answer ever comes.
#[tokio::test]
async fn watch_that_is_forbidden_is_not_silent() {
    let script = Script::default();
    *script.forbidden.lock().unwrap() = 3;
    let (tell, mut tells) = mpsc::unbounded_channel();
    let pulses = Pulses::default();
    let (began, pulse) = (Instant::now(), pulses.begin());
    let following = tokio::spawn(async move {
        follow(script, None, pulse, move |event| {
            drop(tell.send(told(&event)));
        })
        .await
    });

    // Each list begins before it is answered: two answers came.
    for _ in 0..3 {
        assert_eq!(tells.recv().await.unwrap(), "begin");
    }

    let silence = pulses.silence().unwrap();
    assert!(began.elapsed() - silence >= AGAIN_MIN, "{silence:?}");
    following.abort();
}

#[tokio::test]
async fn most_silent_watch_is_the_one_that_is_told_of() {
    let pulses = Pulses::default();
    assert_eq!(pulses.silence(), None);
    let (lives, dies) = (pulses.begin(), pulses.begin());
    let died = Instant::now();

    while died.elapsed() < Duration::from_millis(20) {
        lives.beat();
        tokio::task::yield_now().await;
    }

    assert!(pulses.silence().unwrap() >= Duration::from_millis(20));
    lives.beat();
    dies.beat();
    let silence = pulses.silence().unwrap();
    assert!(died.elapsed() - silence >= Duration::from_millis(20));
}

/// Of a namespace in `watchNamespaces` that is not there, each kind is asked for in vain.
#[test]
fn what_is_forbidden_is_asked_for_once_a_minute_and_what_fails_every_five_seconds() {
    let asked_n = |is_forbidden, seconds| {
        let mut patience = Patience(AGAIN_MIN);
        let (mut passed, mut asked_n) = (Duration::ZERO, 0);
        while passed < Duration::from_secs(seconds) {
            passed += patience.wait(is_forbidden);
            asked_n += 1;
        }
        asked_n
    };

    assert_eq!(asked_n(true, 6), 5, "rights that are late by a moment");
    assert_eq!(asked_n(true, 3_600), 68);
    assert_eq!(asked_n(false, 3_600), 724);
    let mut patience = Patience(FORBIDDEN_AGAIN_MAX);
    assert_eq!(patience.wait(false), AGAIN_MAX);
}

#[tokio::test]
async fn namespace_that_comes_later_is_watched_then() {
    let script = Script::default();
    *script.forbidden.lock().unwrap() = 2;
    let pages = [(vec!["a"], None, "10")];
    script.pages.lock().unwrap().extend(pages);
    let (tell, mut tells) = mpsc::unbounded_channel();
    let pulses = Pulses::default();
    let following = tokio::spawn({
        let (source, pulse) = (script.clone(), pulses.begin());
        async move {
            follow(source, None, pulse, move |event| {
                drop(tell.send(told(&event)));
            })
            .await
        }
    });

    let mut all = Vec::new();
    while all.last().map(String::as_str) != Some("end") {
        all.push(tells.recv().await.unwrap());
    }

    assert_eq!(all, ["begin", "begin", "begin", "there is a", "end"]);
    following.abort();
}

/// An API server that is in trouble.
struct Down(mpsc::UnboundedSender<()>);

impl Source for Down {
    type Value = ConfigMap;

    async fn list(&self, _: &ListParams) -> kube::Result<Page<ConfigMap>> {
        self.0.send(()).unwrap();
        let status = Status::failure("etcd is gone", "InternalError").with_code(500);
        Err(kube::Error::Api(status.boxed()))
    }

    async fn watch(&self, _: &WatchParams, _: &str) -> kube::Result<Events<ConfigMap>> {
        unreachable!("nothing was listed")
    }
}

/// Else an operator would be ended for an API server that is gone.
#[tokio::test]
async fn watch_that_fails_is_no_standstill_f2() {
    let pulses = Pulses::default();
    assert_eq!(pulses.standstill(), None);
    let (asked, mut asks) = mpsc::unbounded_channel();
    let pulse = pulses.begin();
    let following = tokio::spawn(follow(Down(asked), None, pulse, |_| {}));

    // The second failure is noted after the first wait.
    for _ in 0..3 {
        asks.recv().await.unwrap();
    }

    let (silence, standstill) = (pulses.silence().unwrap(), pulses.standstill().unwrap());
    let longer = silence >= standstill + AGAIN_MIN / 2;
    assert!(longer, "{silence:?} {standstill:?}");
    following.abort();
}
