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
  resources: [streamjobs/finalizers, savepoints/finalizers]
  verbs: [update]
# The pods of a job. Watched, so that a change by somebody else is seen and reverted.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# Pods are made by the StatefulSet; a pod that must run another spec is deleted.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, delete]
# The other children of a job, written by server-side apply.
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
# Credentials that a job names are read; the job's certificate is written. Never listed, never watched:
# a Secret that no job names is not seen.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
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
# The authority that signs the jobs' certificates: made at the first start.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [streamforge-ca]
  verbs: [get]
{{- end }}
