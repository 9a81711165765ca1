{{/*
What the operator may do, and why. Nothing is listed or watched that is not needed: Secrets above all are
only read one by one, by the names that a StreamJob gives.
*/}}

{{/* In each namespace whose jobs it runs. */}}
{{- define "streamforge.jobRights" -}}
# The jobs themselves. Their spec is changed by others; patch is for the finalizer and for defaults.
- apiGroups: [streamforge.io]
  resources: [streamjobs, savepoints]
  verbs: [get, list, watch, patch]
# ttlAfterFinished.
- apiGroups: [streamforge.io]
  resources: [streamjobs]
  verbs: [delete]
- apiGroups: [streamforge.io]
  resources: [streamjobs/status, savepoints/status]
  verbs: [patch]
# Needed to be named as an owner that blocks deletion.
- apiGroups: [streamforge.io]
  resources: [streamjobs/finalizers]
  verbs: [update]
# The children of a job: watched (children.rs), so that a change by somebody else is seen and reverted at once, and
# written by server-side apply (apply.rs). get is for one of that name that is somebody else's (is_free), and for the
# record (keep.rs). The watches have a label selector: of other objects' contents nothing is asked for, and of all but
# StatefulSets and pods the metadata alone.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Pods are made by the StatefulSet. Watched for what keeps them from starting; one that holds up a better one, or whose
# node is lost, is deleted (pass/children.rs). patch is for an annotation: by it the kubelet hears of a Secret that was
# changed (pass/secrets.rs).
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
# Credentials that a job names are read; the job's certificate is written. Never listed, never watched:
# a Secret that no job names is not seen.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Everywhere, though it looks after some namespaces only: see rbac.finalizers in values.yaml (take_down.rs). */}}
{{- define "streamforge.finalizerRights" -}}
- apiGroups: [streamforge.io]
  resources: [streamjobs, savepoints]
  verbs: [list, watch, patch]
{{- end }}

{{/* In its own namespace. */}}
{{- define "streamforge.ownRights" -}}
# Who leads. Creation cannot be bound to a name: the name is not known to the API server then.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [streamforge-operator]
  verbs: [get, update]
# Whether the one that leads is still there: a pod that was deleted by force cannot give the Lease back.
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
# The authority that signs the jobs' certificates: made at the first start.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [streamforge-ca]
  verbs: [get]
{{- end }}

{{/* With the webhook: to tell the API server whose certificate it has. */}}
{{- define "streamforge.webhookRights" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [{{ include "streamforge.webhook" . | quote }}]
  verbs: [get, patch]
{{- end }}
