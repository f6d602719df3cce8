package manifests

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// claims are the volumes that each pod gets for itself, by name.
func (j *judge) claims() map[string]corev1.PersistentVolumeClaim {
	claims := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range j.StatefulSet.Spec.VolumeClaimTemplates {
		claims[c.Name] = c
	}
	return claims
}

// data: a node writes its snapshots to a volume of its own, or writes none. In the pod's own
// file system they would go with the pod, whose root cannot be written anyway.
func (j *judge) data() {
	claims := j.claims()
	dir := j.env("SLUICE_DATA_DIR").Value
	found := false
	for _, m := range j.container.VolumeMounts {
		claim, ok := claims[m.Name]
		if !ok {
			continue
		}
		j.want(m.MountPath == dir, "container: volume %s is mounted at %s, SLUICE_DATA_DIR is %q", m.Name, m.MountPath, dir)
		j.want(!m.ReadOnly, "container: volume %s cannot be written", m.Name)
		j.want(slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}),
			"StatefulSet: volume %s is not for one node alone", m.Name)
		j.want(!claim.Spec.Resources.Requests.Storage().IsZero(), "StatefulSet: volume %s has no size", m.Name)
		found = true
	}
	j.want(found == (len(claims) > 0), "StatefulSet: there are volumes that are not mounted")
	j.want(found == (dir != ""), "container: no volume of the pod's own is mounted at SLUICE_DATA_DIR %s", dir)
	if keep := j.StatefulSet.Spec.PersistentVolumeClaimRetentionPolicy; found {
		j.want(keep != nil && keep.WhenScaled == "Retain" && keep.WhenDeleted == "Retain",
			"StatefulSet: volumes go when the cluster is scaled to 0, which is how it is stopped")
	}
}

// operators: the operators' socket lies where the node may write and nothing is left of it after the pod; in a directory that the
// node makes, as a volume's own belongs to root and lets others in.
func (j *judge) operators() {
	dir := j.env("SLUICE_OPERATORS_DIR").Value
	v, _ := j.volumeAt(path.Dir(dir))
	j.want(v.EmptyDir != nil, "container: SLUICE_OPERATORS_DIR is %q, want a directory in an emptyDir", dir)
	for _, m := range j.container.VolumeMounts {
		j.want(v.Name == "" || m.Name != v.Name || !m.ReadOnly, "container: the operators' socket cannot be made in volume %s", m.Name)
	}
	for _, other := range j.StatefulSet.Spec.Template.Spec.Volumes {
		j.want(other.EmptyDir == nil || other.Name == v.Name, "StatefulSet: volume %s is for nothing", other.Name)
	}
}
