//! The children of a job, applied.
//!
//! Owns: when they are written, how many pods there are to be, and pods that cannot start.

use std::time::Instant;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{APPLY_AGAIN, Pass};
use crate::apply::{apply, apply_set, is_free, is_gone};
use crate::certificates::Leaf;
use crate::events;
use crate::record::State;
use crate::stream_job::error::{Error, api};
use crate::stream_job::report::Trouble;
use crate::stream_job::validate::Desired;
use crate::stream_job::{build, keep, pods};

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
        // And come before they are needed.
        let wanted = self.desired.as_ref().map_or(0, Desired::replicas);
        current.replicas().max(wanted).max(runs)
    }

    pub(super) async fn apply_children(&mut self) -> Result<(), Error> {
        let (Some(Ok(current)), Some(record)) = (self.current(), &self.record) else {
            return Ok(());
        };
        let client = &self.context.client;
        let certificate = self.certificate(&current).await?;
        let mut children = build::build(&build::Request {
            desired: &current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: self.replicas(&current),
            certificate: certificate.as_ref(),
        });
        keep::add(&mut children.document, record);
        let hash = hash_of(&children);
        self.pods.desired = self.replicas(&current);
        let set_name = children.stateful_set.name_any();
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &self.namespace());
        let set = sets.get_opt(&set_name).await;
        let set = set.map_err(api("read the StatefulSet"))?;
        let generation = set.as_ref().and_then(|set| set.metadata.generation);
        let status = set.as_ref().and_then(|set| set.status.as_ref());
        self.pods.ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
        self.replaces_pods = status.is_some_and(|it| it.update_revision != it.current_revision);
        let applied = self
            .memory
            .applied
            .take()
            .filter(|(applied, ..)| *applied == hash);
        let drifted = applied
            .as_ref()
            .is_some_and(|(_, of, _)| generation != Some(*of));
        if let Some((applied, of, at)) = applied
            && !drifted
            && at.elapsed() < APPLY_AGAIN
        {
            self.memory.applied = Some((applied, of, at));
            return self.look_at_pods(set.as_ref(), &current).await;
        }
        apply(client, &children.document)
            .await
            .map_err(api("apply the ConfigMap"))?;
        apply(client, &children.service_account)
            .await
            .map_err(api("apply the ServiceAccount"))?;
        apply(client, &children.service)
            .await
            .map_err(api("apply the Service"))?;
        apply(client, &children.network_policy)
            .await
            .map_err(api("apply the NetworkPolicy"))?;
        apply(client, &children.disruption_budget)
            .await
            .map_err(api("apply the PodDisruptionBudget"))?;
        if let Some(tls) = &children.tls {
            apply(client, &tls.0)
                .await
                .map_err(api("apply the Secret"))?;
        }
        let set = apply_set(client, &children.stateful_set).await;
        let set = set.map_err(api("apply the StatefulSet"))?;
        let generation_now = set.metadata.generation.unwrap_or_default();
        if drifted && generation != Some(generation_now) {
            let name = set.name_any();
            let repaired = events::drift_repaired("StatefulSet", &name, None, &["spec".to_owned()]);
            self.tell(repaired).await;
        }
        self.memory.applied = Some((hash, generation_now, Instant::now()));
        self.look_at_pods(Some(&set), &current).await
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
        let found = [
            (
                "ConfigMap",
                children.document.name_any(),
                is_free(client, &children.document, job).await,
            ),
            (
                "Secret",
                secret.name_any(),
                is_free(client, &secret, job).await,
            ),
            (
                "StatefulSet",
                children.stateful_set.name_any(),
                is_free(client, &children.stateful_set, job).await,
            ),
            (
                "Service",
                children.service.name_any(),
                is_free(client, &children.service, job).await,
            ),
            (
                "ServiceAccount",
                children.service_account.name_any(),
                is_free(client, &children.service_account, job).await,
            ),
        ];
        for (kind, name, free) in found {
            if !free.map_err(api("read the owner of a child"))? {
                return Err(Error::NotOurs { kind, name });
            }
        }
        self.memory.names_are_free = true;
        Ok(())
    }

    /// Finds pods that cannot start; those that are in the way of better ones are deleted.
    async fn look_at_pods(
        &mut self,
        set: Option<&StatefulSet>,
        current: &Desired,
    ) -> Result<(), Error> {
        let status = set.and_then(|set| set.status.as_ref());
        self.memory.sick = None;
        if self.pods.ready >= self.pods.desired {
            return Ok(());
        }
        let revision = status.and_then(|status| status.update_revision.as_deref());
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &self.namespace());
        let ours = ListParams::default().labels(&current.identity.names.selector_text());
        let listed = pods.list(&ours).await.map_err(api("list pods"))?;
        for pod in listed
            .iter()
            .filter(|pod| pods::is_left_behind(pod, Timestamp::now()))
        {
            // Its node does not say so, and what the pod may still do is fenced (C5, X2).
            let name = pod.name_any();
            let params = DeleteParams::default().grace_period(0);
            match pods.delete(&name, &params).await {
                Err(error) if !is_gone(&error) => {
                    return Err(api("delete a pod of a lost node")(error));
                }
                _ => {}
            }
            self.tell(events::lost_pod_deleted(&name)).await;
        }
        for sick in listed.iter().filter_map(|pod| pods::sick(pod, revision)) {
            if sick.is_in_the_way {
                let deleted = pods.delete(&sick.name, &DeleteParams::default()).await;
                match deleted {
                    Err(error) if !is_gone(&error) => return Err(api("delete a stuck pod")(error)),
                    _ => {}
                }
                self.tell(events::stuck_pod_deleted(&sick.name, &sick.reason))
                    .await;
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

    /// A new certificate for the pods, if the one that they have is due.
    async fn certificate(&self, current: &Desired) -> Result<Option<Leaf>, Error> {
        let identity = &current.identity;
        let secrets: Api<Secret> =
            Api::namespaced(self.context.client.clone(), &identity.namespace);
        let secret = secrets.get_opt(identity.names.tls().as_str()).await;
        let secret = secret.map_err(api("read the Secret of certificates"))?;
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

/// All that is applied, as one number.
fn hash_of(children: &build::Children) -> String {
    let build::Children {
        document,
        service_account,
        tls,
        service,
        disruption_budget,
        network_policy,
        stateful_set,
    } = children;
    crate::hash::of(&json!([
        document,
        service_account,
        tls.as_ref().map(|tls| &tls.0),
        service,
        disruption_budget,
        network_policy,
        stateful_set,
    ]))
}
