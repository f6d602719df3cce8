package manifests

import (
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fileSettings are the settings that name one file each, beside the secret, which mounts judges.
var fileSettings = []string{
	"SLUICE_CALLERS", "SLUICE_GOSSIP_KEYRING",
	"SLUICE_TLS_CERT", "SLUICE_TLS_KEY", "SLUICE_TLS_CLIENT_CA",
	"SLUICE_PEER_TLS_CERT", "SLUICE_PEER_TLS_KEY", "SLUICE_PEER_TLS_CA",
}

// certificateKeys are what cert-manager puts into a Certificate's Secret.
var certificateKeys = []string{"ca.crt", "tls.crt", "tls.key"}

// files: what a setting names is in a volume that is mounted, out of an object that has it.
func (j *judge) files() {
	for _, setting := range fileSettings {
		file := j.env(setting).Value
		if file == "" {
			continue
		}
		v, ok := j.volumeAt(path.Dir(file))
		switch key := path.Base(file); {
		case !ok:
			j.fault("container: no volume is mounted at %s, where %s is", path.Dir(file), setting)
		case v.ConfigMap != nil:
			m := j.ConfigMaps[v.ConfigMap.Name]
			j.want(m != nil && m.Data[key] != "", "StatefulSet: ConfigMap %s has no %s, which %s names", v.ConfigMap.Name, key, setting)
		case v.Secret != nil:
			j.secretFile(setting, key, v.Secret)
		default:
			j.fault("StatefulSet: %s is in a volume that is neither a Secret nor a ConfigMap", setting)
		}
	}
}

// secretFile: users make the Secrets whose keys are listed, and cert-manager makes the others.
func (j *judge) secretFile(setting, key string, s *corev1.SecretVolumeSource) {
	j.want(s.Optional == nil || !*s.Optional, "StatefulSet: a node would start without %s", setting)
	j.want(s.DefaultMode != nil && *s.DefaultMode&0o007 == 0, "StatefulSet: everybody in the pod can read %s", setting)
	if len(s.Items) > 0 {
		j.want(slices.ContainsFunc(s.Items, func(k corev1.KeyToPath) bool { return k.Path == key }), "StatefulSet: Secret %s has no file %s, which %s names", s.SecretName, key, setting)
		return
	}
	made := slices.ContainsFunc(slices.Collect(maps.Keys(j.Certificates)), func(name string) bool {
		return j.Certificates[name].Spec.SecretName == s.SecretName
	})
	j.want(made && slices.Contains(certificateKeys, key), "StatefulSet: nobody puts %s into Secret %s, where %s is", key, s.SecretName, setting)
}

// volumeAt returns the volume that is mounted at dir.
func (j *judge) volumeAt(dir string) (corev1.Volume, bool) {
	for _, m := range j.container.VolumeMounts {
		if strings.TrimSuffix(m.MountPath, "/") != dir {
			continue
		}
		for _, v := range j.StatefulSet.Spec.Template.Spec.Volumes {
			if v.Name == m.Name {
				return v, true
			}
		}
	}
	return corev1.Volume{}, false
}
