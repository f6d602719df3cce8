package manifests

import (
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestSecured breaks what TLS and callers add, one thing at a time.
func TestSecured(t *testing.T) {
	env := func(name, value string) func(*Objects) {
		return func(o *Objects) {
			pod := &o.StatefulSet.Spec.Template.Spec
			setEnv(name, value)(o, pod, &pod.Containers[0])
		}
	}
	volume := func(name string, spoil func(*corev1.SecretVolumeSource)) func(*Objects) {
		return func(o *Objects) {
			for _, v := range o.StatefulSet.Spec.Template.Spec.Volumes {
				if v.Name == name {
					spoil(v.Secret)
				}
			}
		}
	}
	certificate := func(name string, spoil func(*certmanagerv1.CertificateSpec)) func(*Objects) {
		return func(o *Objects) { spoil(&o.Certificates[name].Spec) }
	}
	for _, c := range []struct {
		want  string
		spoil func(o *Objects)
	}{
		{"no volume is mounted at /etc/ssl", env("SLUICE_TLS_KEY", "/etc/ssl/tls.key")},
		{"nobody puts key.pem into Secret sluice-doors-tls", env("SLUICE_TLS_KEY", "/etc/sluice/doors/key.pem")},
		{"Secret sluice-secret has no file ca.crt", env("SLUICE_PEER_TLS_CA", "/etc/sluice/secret/ca.crt")},
		{"has no callers.yml", env("SLUICE_CALLERS", "/etc/sluice/callers/callers.yml")},
		{"ConfigMap sluice-callers has no", func(o *Objects) { delete(o.ConfigMaps, "sluice-callers") }},
		{"one is encrypted and one is not", env("SLUICE_PEER_TLS_CERT", "")},
		{"a node would start without SLUICE_PEER_TLS", volume("nodes", func(s *corev1.SecretVolumeSource) { s.Optional = new(true) })},
		{"can read SLUICE_PEER_TLS_KEY", volume("nodes", func(s *corev1.SecretVolumeSource) { s.DefaultMode = new(int32(0o444)) })},
		{"nobody puts tls.crt into Secret sluice-tls", volume("doors", func(s *corev1.SecretVolumeSource) { s.SecretName = "sluice-tls" })},
		{"does not say that it is TLS", func(o *Objects) { o.Services["sluice"].Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c") }},
		{"readiness probe asks by \"\"", func(o *Objects) { o.StatefulSet.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Scheme = "" }},
		{"asks by http, the port answers https", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].Scheme = nil }},
		{"does not look at the port's certificate", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].TLSConfig = nil }},
		{"\"metrics\" is no name of", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].TLSConfig.ServerName = new("metrics") }},
		{"takes the authority from ca.crt of Secret other", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].TLSConfig.CA.Secret.Name = "other" }},
		{"callers that ask for sluice.sluice.svc", certificate("sluice-doors", func(s *certmanagerv1.CertificateSpec) { s.DNSNames = []string{"sluice"} })},
		{"is not for servers", certificate("sluice-doors", func(s *certmanagerv1.CertificateSpec) { s.Usages = s.Usages[:1] })},
		{"is not for both sides", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.Usages = s.Usages[:2] })},
		{"sluice-0.sluice-peers.sluice.svc is no name", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.DNSNames = []string{"*.sluice-peers.default.svc"} })},
		{"SLUICE_PEER_TLS_NAME makes \"sluice-0\"", env("SLUICE_PEER_TLS_NAME", "{name}")},
		{"SLUICE_PEER_TLS_NAME makes", func(o *Objects) { o.StatefulSet.Namespace = "limits" }},
		{"could be a node", certificate("sluice-doors", func(s *certmanagerv1.CertificateSpec) { s.IssuerRef.Name = "sluice-nodes" })},
		{"there is no Issuer", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.IssuerRef.Name = "nobody" })},
		{"is no authority", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.IssuerRef.Name = "sluice-self-signed" })},
		{"is signed by itself", certificate("sluice-nodes-ca", func(s *certmanagerv1.CertificateSpec) { s.IssuerRef.Name = "sluice-doors" })},
		{"nobody makes Secret sluice-nodes-ca", certificate("sluice-nodes-ca", func(s *certmanagerv1.CertificateSpec) { s.SecretName = "other" })},
		{"must be rotated Always", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.PrivateKey.RotationPolicy = "" })},
		{"must be rotated Never", certificate("sluice-nodes-ca", func(s *certmanagerv1.CertificateSpec) { s.PrivateKey.RotationPolicy = "Always" })},
		{"no such algorithm", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.PrivateKey.Algorithm = "EC" })},
		{"usage \"server\"", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.Usages[1] = "server" })},
		{"is not renewed", certificate("sluice-nodes", func(s *certmanagerv1.CertificateSpec) { s.RenewBefore = s.Duration })},
	} {
		t.Run(c.want, func(t *testing.T) {
			o := build(t, "overlays/secured")
			c.spoil(o)
			faults := Judge(o, program.Settings, ports)
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("the judge says %q", faults)
			}
		})
	}
}

// A field that cert-manager does not have is an error.
func TestSecuredIsStrict(t *testing.T) {
	const file = "components/tls/certificates.yaml"
	_, err := Build(k8s, "overlays/secured", map[string]string{file: `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: x}
spec: {secretName: x, dnsName: [x], issuerRef: {name: x}}
`})
	if err == nil || !strings.Contains(err.Error(), `unknown field "dnsName"`) {
		t.Errorf("error %v, want one about dnsName", err)
	}
}
