//! The children of a job, applied.
//!
//! Owns: when they are written, how many pods there are to be, and pods that cannot start.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use streamforge_crds::v1alpha1::StreamJob;

use super::{LOOK_AGAIN_SOON, PAUSE, Pass};
use crate::apply::{apply, apply_set, is_conflict, is_free, is_gone, is_refusal, scale_to_zero};
use crate::certificates::Leaf;
use crate::children::{Kind, Seen, SetStatus};
use crate::record::State;
use crate::stream_job::error::{Error, api};
use crate::stream_job::pods::Missing;
use crate::stream_job::report::Trouble;
use crate::stream_job::validate::Desired;
use crate::stream_job::{build, keep, pods};
use crate::{events, hash};

/// How often the certificate of pods is looked at, which nobody tells of.
const CERTIFY_EVERY: Duration = Duration::from_secs(3_600);

/// The same while pods are missing, at first and at last.
const CERTIFY_SOON: Duration = Duration::from_secs(10);
const CERTIFY_SELDOM: Duration = Duration::from_secs(640);

/// A child as it was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Hash of what was applied.
    pub hash: String,
    /// What the server made of it.
    pub seen: Seen,
}

impl Applied {
    /// Whether it must be applied again; `seen` is what is there now.
    fn is_due(&self, kind: Kind, hash: &str, seen: Option<&Seen>) -> bool {
        self.hash != hash || seen.is_none_or(|seen| !seen.is_as(&self.seen, kind))
    }
}

impl Pass<'_> {
    /// Pods that the job needs now.
    pub(super) fn replicas(&self, current: &Desired) -> i32 {
        let is_active = self
            .record
            .as_ref()
            .is_some_and(|record| record.state == State::Active);
        if !is_active {
            return 0;
        }
        // Pods go when nothing runs there any more.
        let runs = self.context.fleet.get(&self.uid);
        let runs = runs.map_or(0, |coordinator| coordinator.status.borrow().parallelism);
        let runs = i32::try_from(runs.div_ceil(current.pods.slots.max(1))).unwrap_or(i32::MAX);
        // And come before they are needed. A document that was rolled back needs none, nor does one that waits
        // for the end of a pause.
        let wanted = self.tried();
        let comes = self.rolled_back().is_none() && self.annotation(PAUSE).is_none();
        let wanted = wanted.filter(|_| comes);
        let wanted = wanted.map_or(0, |desired| desired.replicas());
        current.replicas().max(wanted).max(runs)
    }

    pub(super) async fn apply_children(&mut self) -> Result<(), Error> {
        let (Some(Ok(current)), Some(record)) = (self.current(), self.record.clone()) else {
            return Ok(());
        };
        self.look_at_set(&current);
        self.renew_certificate(&current).await?;
        let mut children = build::build(&build::Request {
            desired: &current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: self.pods.desired,
            certificate: None,
        });
        let document = children.document.clone();
        keep::add(&mut children.document, &record);
        if self.is_due(Kind::ConfigMap, &children.document)
            && !self.write_map(document, record).await?
        {
            self.look_within = LOOK_AGAIN_SOON;
        }
        let put = self.put_all(&children).await;
        // Pods that are there are looked after even if others may not be made.
        let looked = self.look_at_pods(&current).await;
        let secrets = self.look_at_secrets(&current).await;
        put.and(looked).and(secrets)
    }

    /// The pods last: the others are for them.
    async fn put_all(&mut self, children: &build::Children) -> Result<(), Error> {
        self.put(Kind::ServiceAccount, &children.service_account)
            .await?;
        self.put(Kind::Service, &children.service).await?;
        self.put(Kind::NetworkPolicy, &children.network_policy)
            .await?;
        self.put(Kind::PodDisruptionBudget, &children.disruption_budget)
            .await?;
        self.put_set(&children.stateful_set).await
    }

    /// Pods that nobody needs any more go, although those of the document may not be made.
    async fn put_set(&mut self, set: &StatefulSet) -> Result<(), Error> {
        let put = self.put(Kind::StatefulSet, set).await;
        let Err(Error::Apply {
            source: kube::Error::Api(refused),
            ..
        }) = &put
        else {
            return put;
        };
        let name = set.name_any();
        let namespace = self.namespace();
        let seen = self
            .context
            .children
            .get(Kind::StatefulSet, &namespace, &name);
        let is_ours = seen.and_then(|seen| seen.job) == Some(self.job.name_any());
        let goes = set.spec.replicas == Some(0);
        if goes && is_ours && is_refusal(refused) {
            let scaled = scale_to_zero(&self.context.client, set).await;
            if let Err(error) = scaled {
                tracing::warn!(%error, namespace, name, "pods that nobody needs are left");
            }
        }
        put
    }

    /// All that is done of children during a pause: they are looked at, and pods that are left alone must not
    /// be left without a certificate that holds.
    pub(super) async fn look_at_children(&mut self) -> Result<(), Error> {
        let Some(Ok(current)) = self.current() else {
            return Ok(());
        };
        self.look_at_set(&current);
        self.renew_certificate(&current).await
    }

    async fn renew_certificate(&mut self, current: &Desired) -> Result<(), Error> {
        let Some(certificate) = self.certificate(current).await? else {
            return Ok(());
        };
        let children = build::build(&build::Request {
            desired: current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: 0,
            certificate: Some(&certificate),
        });
        if let Some(tls) = &children.tls {
            let applied = apply(&self.context.client, &tls.0).await;
            // It is looked at again if it could not be applied.
            applied
                .inspect_err(|_| self.memory.certified = None)
                .map_err(api("apply the Secret"))?;
        }
        Ok(())
    }

    /// Applies a child, if it is not there as it was applied last.
    async fn put<K: Child>(&mut self, kind: Kind, object: &K) -> Result<(), Error> {
        if !self.is_due(kind, object) {
            return Ok(());
        }
        let (hash, name) = (hash::of(object), object.name_any());
        let seen = self.context.children.get(kind, &self.namespace(), &name);
        let applied = K::apply(&self.context.client, object, self.job).await;
        let applied = applied.map_err(|source| Error::Apply {
            kind: kind.name(),
            source,
        })?;
        let Some(applied) = applied else {
            // The watch tells when it is gone.
            self.look_within = LOOK_AGAIN_SOON;
            return Ok(());
        };
        let now = Seen::of(applied.meta(), SetStatus::default());
        let before = self.memory.applied.get(&kind);
        // What was to be changed anyway is no drift.
        if let Some(before) = before.filter(|before| before.hash == hash).cloned() {
            self.tell_of_drift(kind, &name, seen.as_ref(), (&before.seen, &now), object)
                .await;
        }
        self.memory
            .applied
            .insert(kind, Applied { hash, seen: now });
        Ok(())
    }

    /// Whether a child must be applied: it is to be another, or is not as it was applied.
    fn is_due<K: Child>(&self, kind: Kind, object: &K) -> bool {
        let seen = self
            .context
            .children
            .get(kind, &self.namespace(), &object.name_any());
        let applied = self.memory.applied.get(&kind);
        applied.is_none_or(|applied| applied.is_due(kind, &hash::of(object), seen.as_ref()))
    }

    /// How many pods there are to be, and what the set says of those that there are.
    pub(super) fn look_at_set(&mut self, current: &Desired) {
        self.pods.desired = self.replicas(current);
        let (children, namespace) = (&self.context.children, self.namespace());
        let name = current.identity.names.task_managers();
        let set = children.get(Kind::StatefulSet, &namespace, name.as_str());
        let set = set.map(|seen| seen.set).unwrap_or_default();
        self.pods.ready = set.ready;
        self.replaces_pods = set.replaces_pods;
        self.update_revision = set.update_revision;
    }

    /// Before anything is applied for the first time: what is somebody else's stays so.
    pub(super) async fn check_names(&mut self) -> Result<(), Error> {
        let (Ok(desired), false) = (&self.desired, self.memory.names_are_free) else {
            return Ok(());
        };
        let children = build::build(&build::Request {
            desired,
            settings: &self.context.settings,
            kept: None,
            replicas: 0,
            certificate: None,
        });
        let (client, job) = (&self.context.client, self.job);
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(desired.identity.names.tls().to_string()),
                namespace: Some(desired.identity.namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let ours = |kind: Kind, name: &str| {
            let seen = self.context.children.get(kind, &self.namespace(), name);
            seen.and_then(|seen| seen.job) == Some(job.name_any())
        };
        let taken = |kind: &'static str, name: String| Err(Error::NotOurs { kind, name });
        let reading = api("read the owner of a child");
        // What is ours is watched; what is somebody else's is not.
        macro_rules! check {
            ($kind:ident, $object:expr) => {
                let name = $object.name_any();
                if !ours(Kind::$kind, &name)
                    && !is_free(client, $object, job).await.map_err(&reading)?
                {
                    return taken(stringify!($kind), name);
                }
            };
        }
        check!(ConfigMap, &children.document);
        check!(StatefulSet, &children.stateful_set);
        check!(Service, &children.service);
        check!(ServiceAccount, &children.service_account);
        check!(NetworkPolicy, &children.network_policy);
        check!(PodDisruptionBudget, &children.disruption_budget);
        if !is_free(client, &secret, job).await.map_err(&reading)? {
            return taken("Secret", secret.name_any());
        }
        self.memory.names_are_free = true;
        Ok(())
    }

    /// Finds pods that cannot start; those that are in the way of better ones are deleted.
    async fn look_at_pods(&mut self, current: &Desired) -> Result<(), Error> {
        self.memory.sick = None;
        if self.pods.ready >= self.pods.desired {
            self.memory.missing = Missing::default();
            return Ok(());
        }
        let namespace = self.namespace();
        let label = current.identity.names.label();
        let listed = self.context.children.pods(&namespace, label.as_str());
        let missing = &mut self.memory.missing;
        match missing.look(&listed, self.pods.desired, Instant::now()) {
            Some(left) if left.is_zero() => {
                let (set, n) = (current.identity.names.task_managers(), listed.len());
                let message = format!(
                    "StatefulSet {set} has {n} of {} pods; see kubectl describe statefulset {set}",
                    self.pods.desired
                );
                self.memory.sick = Some((Trouble::PodsStuck, message));
            }
            Some(left) => self.look_within = self.look_within.min(left.max(LOOK_AGAIN_SOON)),
            None => {}
        }
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &namespace);
        for (pod, left) in self.memory.leaving.look(&listed, Instant::now()) {
            if !left.is_zero() {
                let wait = left + Duration::from_millis(100);
                self.look_within = self.look_within.min(wait);
                continue;
            }
            // Its node does not say so, and what the pod may still do is fenced (C5, X2).
            let name = pod.name_any();
            let params = DeleteParams::default().grace_period(0);
            let deleted = delete(&pods, &name, pod.uid(), params).await;
            if deleted.map_err(api("delete a pod of a lost node"))? {
                self.tell(events::lost_pod_deleted(&name)).await;
            }
        }
        let revision = self.update_revision.as_deref();
        for sick in listed.iter().filter_map(|pod| pods::sick(pod, revision)) {
            if sick.is_in_the_way {
                let params = DeleteParams::default();
                let deleted = delete(&pods, &sick.name, sick.uid, params).await;
                if deleted.map_err(api("delete a stuck pod"))? {
                    let event = events::stuck_pod_deleted(&sick.name, &sick.reason);
                    self.tell(event).await;
                }
                continue;
            }
            let trouble = if sick.out_of_memory {
                Trouble::OutOfMemory
            } else {
                Trouble::PodsStuck
            };
            self.memory.sick = Some((trouble, format!("pod {}: {}", sick.name, sick.reason)));
        }
        Ok(())
    }

    /// A new certificate for the pods, if the one that they have is due. The Secret may not be watched, so it
    /// is looked at now and then: more often while pods are missing, which may be for its lack.
    async fn certificate(&mut self, current: &Desired) -> Result<Option<Leaf>, Error> {
        let are_ready = self.pods.ready >= self.pods.desired;
        let looked_n = match self.memory.certified {
            Some((at, looked_n)) => {
                let (wait, looked_n) = if are_ready {
                    (CERTIFY_EVERY, 0)
                } else {
                    (look_again(looked_n), looked_n)
                };
                self.memory.certified = Some((at, looked_n));
                if let Some(left) = wait.checked_sub(at.elapsed()) {
                    self.look_within = self.look_within.min(left.max(LOOK_AGAIN_SOON));
                    return Ok(None);
                }
                looked_n + 1
            }
            None => 0,
        };
        let identity = &current.identity;
        let secrets: Api<Secret> =
            Api::namespaced(self.context.client.clone(), &identity.namespace);
        let secret = secrets.get_opt(identity.names.tls().as_str()).await;
        let secret = secret.map_err(api("read the Secret of certificates"))?;
        self.memory.certified = Some((Instant::now(), looked_n));
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let text = |key: &str| {
            let value = data.get(key).map(|value| value.0.clone());
            String::from_utf8(value.unwrap_or_default()).unwrap_or_default()
        };
        let (certificate, authority) = (text(build::CERTIFICATE_KEY), text(build::AUTHORITY_KEY));
        let now = Timestamp::now();
        let has_key = data.contains_key(build::PRIVATE_KEY_KEY);
        let is_due = self
            .context
            .authority
            .is_due(&identity.uid, &certificate, &authority, now);
        if has_key && !is_due {
            return Ok(None);
        }
        Ok(Some(
            self.context.authority.issue_to_job(&identity.uid, now)?,
        ))
    }
}

/// Deletes the pod that was looked at. False: it is gone, and what there is of its name, if anything, is the next one:
/// pods of a StatefulSet have the same names, and what is known of them may be old.
async fn delete(
    pods: &Api<Pod>,
    name: &str,
    uid: Option<String>,
    params: DeleteParams,
) -> Result<bool, kube::Error> {
    let params = params.preconditions(Preconditions {
        uid,
        resource_version: None,
    });
    match pods.delete(name, &params).await {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// After how long the certificate is looked at again while pods are missing.
fn look_again(looked_n: u32) -> Duration {
    CERTIFY_SOON
        .saturating_mul(1 << looked_n.min(6))
        .min(CERTIFY_SELDOM)
}

/// What is applied by [`Pass::put`].
trait Child: Resource<DynamicType = ()> + Serialize + Sized {
    /// Server-side. `None`: not yet.
    fn apply(
        client: &Client,
        object: &Self,
        job: &StreamJob,
    ) -> impl Future<Output = Result<Option<Self>, kube::Error>> + Send;
}

macro_rules! children {
    ($($kind:ty),*) => {$(
        impl Child for $kind {
            async fn apply(
                client: &Client,
                object: &Self,
                _job: &StreamJob,
            ) -> Result<Option<Self>, kube::Error> {
                apply(client, object).await.map(Some)
            }
        }
    )*};
}

children!(
    ConfigMap,
    ServiceAccount,
    Service,
    NetworkPolicy,
    PodDisruptionBudget
);

impl Child for StatefulSet {
    async fn apply(
        client: &Client,
        object: &Self,
        job: &StreamJob,
    ) -> Result<Option<Self>, kube::Error> {
        apply_set(client, object, job).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(version: u64, generation: i64) -> Seen {
        Seen {
            uid: "uid-1".to_owned(),
            version,
            generation: Some(generation),
            ..Seen::default()
        }
    }

    #[test]
    fn child_is_applied_when_it_is_to_be_another_or_was_changed_and_else_never() {
        let applied = Applied {
            hash: "a".to_owned(),
            seen: seen(10, 1),
        };
        let relabelled = Seen {
            meta: "other".to_owned(),
            ..seen(12, 1)
        };
        let made_by_others = Seen {
            uid: "uid-2".to_owned(),
            ..seen(12, 1)
        };
        for (kind, hash, now, due) in [
            (Kind::Service, "a", Some(seen(10, 1)), false),
            (Kind::Service, "b", Some(seen(10, 1)), true),
            // Older than what was applied: that is on its way.
            (Kind::Service, "a", Some(seen(9, 1)), false),
            (Kind::Service, "a", Some(seen(11, 1)), true),
            (Kind::Service, "a", None, true),
            // Others write the status of these, and that is none of our business.
            (Kind::StatefulSet, "a", Some(seen(11, 1)), false),
            (Kind::StatefulSet, "a", Some(seen(11, 2)), true),
            (Kind::PodDisruptionBudget, "a", Some(relabelled), true),
            (Kind::NetworkPolicy, "a", Some(made_by_others), true),
        ] {
            assert_eq!(
                applied.is_due(kind, hash, now.as_ref()),
                due,
                "{kind:?} {now:?}"
            );
        }
    }

    #[test]
    fn certificate_is_looked_at_soon_while_pods_are_missing_and_seldom_if_that_lasts() {
        let waits: Vec<u64> = (0..9).map(|n| look_again(n).as_secs()).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 640, 640]);
    }

    #[tokio::test]
    async fn pod_is_deleted_by_its_uid_and_the_next_one_of_its_name_is_left_alone() {
        use http_body_util::BodyExt as _;
        use hyper::{Request, Response};
        use kube::client::Body;

        let service = tower::service_fn(|request: Request<Body>| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let params: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let uid = params.pointer("/preconditions/uid");
            assert_eq!(params["gracePeriodSeconds"], 0);
            let (code, body) = match uid.and_then(serde_json::Value::as_str) {
                Some("uid-of-now") => (
                    200,
                    serde_json::json!({"metadata": {"name": "clicks-tm-0"}}),
                ),
                Some(_) => (
                    409,
                    serde_json::json!({
                        "kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict",
                    }),
                ),
                None => (500, serde_json::json!({})),
            };
            let body = Body::from(body.to_string().into_bytes());
            Response::builder().status(code).body(body)
        });
        let pods: Api<Pod> = Api::namespaced(Client::new(service, "team"), "team");
        for (uid, is_deleted) in [("uid-of-now", true), ("uid-before", false)] {
            let params = DeleteParams::default().grace_period(0);
            let deleted = delete(&pods, "clicks-tm-0", Some(uid.to_owned()), params).await;
            assert_eq!(deleted.unwrap(), is_deleted, "{uid}");
        }
    }

    #[tokio::test]
    async fn child_of_any_kind_that_is_somebody_elses_is_left_alone_and_told() {
        use crate::stream_job::testing::{api_server, context, job, with_metadata};

        let folder = tempfile::tempdir().unwrap();
        let finalizers = serde_json::json!(["streamforge.io/checkpoints"]);
        let job = with_metadata(&job(), "/finalizers", finalizers);
        for (kind, theirs) in [
            (
                "ConfigMap",
                "/api/v1/namespaces/team/configmaps/clicks-document",
            ),
            (
                "StatefulSet",
                "/apis/apps/v1/namespaces/team/statefulsets/clicks-tm",
            ),
            ("Service", "/api/v1/namespaces/team/services/clicks-tm"),
            (
                "ServiceAccount",
                "/api/v1/namespaces/team/serviceaccounts/clicks-tm",
            ),
            (
                "NetworkPolicy",
                "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies/clicks-tm",
            ),
            (
                "PodDisruptionBudget",
                "/apis/policy/v1/namespaces/team/poddisruptionbudgets/clicks-tm",
            ),
            ("Secret", "/api/v1/namespaces/team/secrets/clicks-tls"),
        ] {
            let (client, asked) = api_server(move |what| {
                let is_it = what.strip_prefix("GET ") == Some(theirs);
                is_it.then(|| serde_json::json!({"metadata": {"name": "theirs"}}))
            });
            let context = context(client, folder.path());

            let passed = super::super::over(&job.clone().into(), &context).await;

            let told = passed.unwrap_err().to_string();
            assert!(
                told.starts_with(&format!("{kind} clicks-")),
                "{kind}: {told}"
            );
            assert_eq!(asked.count(&format!("PATCH {theirs}")), 0, "{kind}");
        }
    }
}
