package manifests

import (
	"crypto/x509"
	"path"
	"slices"
	"strings"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
)

// doorsTLS reports whether the gRPC and the HTTP port speak TLS.
func (j *judge) doorsTLS() bool { return j.env("SLUICE_TLS_CERT").Value != "" }

// certificateAt returns the Certificate whose Secret has the file that a setting names, and that Secret's name.
func (j *judge) certificateAt(setting string) (*certmanagerv1.Certificate, string) {
	v, ok := j.volumeAt(path.Dir(j.env(setting).Value))
	if !ok || v.Secret == nil {
		return nil, ""
	}
	for _, c := range j.Certificates {
		if c.Spec.SecretName == v.Secret.SecretName {
			return c, v.Secret.SecretName
		}
	}
	return nil, v.Secret.SecretName
}

// encryption: doors and peers are encrypted both or not at all, by certificates that have the names that are asked for.
func (j *judge) encryption() {
	doors, peers := j.doorsTLS(), j.env("SLUICE_PEER_TLS_CERT").Value != ""
	j.want(doors == peers, "container: of doors and peers one is encrypted and one is not")
	if doors {
		j.doorCertificate()
	}
	if peers {
		j.nodeCertificate()
	}
	for name, c := range j.Certificates {
		j.certificate(name, c)
	}
}

// certificate: it has an issuer, whose authority is made here as well, and is renewed in time.
func (j *judge) certificate(name string, c *certmanagerv1.Certificate) {
	spec := &c.Spec
	// What no field's type says: the API server takes these and no others.
	j.want(spec.PrivateKey != nil && slices.Contains([]certmanagerv1.PrivateKeyAlgorithm{
		certmanagerv1.ECDSAKeyAlgorithm, certmanagerv1.Ed25519KeyAlgorithm, certmanagerv1.RSAKeyAlgorithm,
	}, spec.PrivateKey.Algorithm), "Certificate %s: there is no such algorithm of keys", name)
	// A new authority with a new key would part nodes that have it from those that have not.
	rotation := certmanagerv1.RotationPolicyAlways
	if spec.IsCA {
		rotation = certmanagerv1.RotationPolicyNever
	}
	j.want(spec.PrivateKey != nil && spec.PrivateKey.RotationPolicy == rotation, "Certificate %s: its key must be rotated %s", name, rotation)
	j.want(spec.Duration != nil && spec.RenewBefore != nil && spec.RenewBefore.Duration > 0 && spec.RenewBefore.Duration < spec.Duration.Duration/2+1,
		"Certificate %s: is not renewed while it lasts", name)
	j.want(spec.SecretName != "", "Certificate %s: has no Secret", name)
	for _, u := range spec.Usages {
		j.want(slices.Contains([]certmanagerv1.KeyUsage{
			certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth, certmanagerv1.UsageClientAuth,
		}, u), "Certificate %s: usage %q", name, u)
	}
	if spec.IssuerRef.Kind != certmanagerv1.IssuerKind {
		return // a ClusterIssuer is not part of this
	}
	issuer := j.Issuers[spec.IssuerRef.Name]
	switch {
	case issuer == nil:
		j.fault("Certificate %s: there is no Issuer %s", name, spec.IssuerRef.Name)
	case spec.IsCA:
		j.want(issuer.Spec.SelfSigned != nil, "Certificate %s: an authority of its own is signed by itself", name)
	case issuer.Spec.CA == nil:
		j.fault("Certificate %s: Issuer %s is no authority", name, spec.IssuerRef.Name)
	default:
		j.want(j.authority(issuer) != nil, "Issuer %s: nobody makes Secret %s", issuer.Name, issuer.Spec.CA.SecretName)
	}
}

// authority returns the Certificate that an Issuer signs with, or nil.
func (j *judge) authority(issuer *certmanagerv1.Issuer) *certmanagerv1.Certificate {
	for _, c := range j.Certificates {
		if issuer != nil && issuer.Spec.CA != nil && c.Spec.IsCA && c.Spec.SecretName == issuer.Spec.CA.SecretName {
			return c
		}
	}
	return nil
}

// doorCertificate: callers ask for the Service by any of its names.
func (j *judge) doorCertificate() {
	c, _ := j.certificateAt("SLUICE_TLS_CERT")
	if c == nil {
		j.fault("container: no Certificate is at SLUICE_TLS_CERT")
		return
	}
	for _, name := range []string{"sluice", "sluice." + j.StatefulSet.Namespace, "sluice." + j.StatefulSet.Namespace + ".svc"} {
		j.want(named509(c, name), "Certificate %s: callers that ask for %s do not find that name", c.Name, name)
	}
	j.want(slices.Contains(c.Spec.Usages, certmanagerv1.UsageServerAuth), "Certificate %s: is not for servers", c.Name)
}

// nodeCertificate: each pod's own name is in it, it is for both sides, and no door or client is of its authority.
func (j *judge) nodeCertificate() {
	c, _ := j.certificateAt("SLUICE_PEER_TLS_CERT")
	if c == nil {
		j.fault("container: no Certificate is at SLUICE_PEER_TLS_CERT")
		return
	}
	name := strings.ReplaceAll(j.env("SLUICE_PEER_TLS_NAME").Value, "{name}", j.StatefulSet.Name+"-0")
	want := j.StatefulSet.Name + "-0." + j.StatefulSet.Spec.ServiceName + "." + j.StatefulSet.Namespace + ".svc"
	j.want(name == want, "container: SLUICE_PEER_TLS_NAME makes %q of a pod that is called %s", name, want)
	j.want(named509(c, want), "Certificate %s: %s is no name of it", c.Name, want)
	j.want(slices.Contains(c.Spec.Usages, certmanagerv1.UsageServerAuth) && slices.Contains(c.Spec.Usages, certmanagerv1.UsageClientAuth),
		"Certificate %s: is not for both sides of a connection", c.Name)
	if doors, _ := j.certificateAt("SLUICE_TLS_CERT"); doors != nil {
		j.want(doors.Spec.IssuerRef != c.Spec.IssuerRef, "Certificate %s: who has a certificate of the doors' authority could be a node", c.Name)
	}
}

// named509 reports whether a certificate with c's names is good for name, by the rules of TLS.
func named509(c *certmanagerv1.Certificate, name string) bool {
	return (&x509.Certificate{DNSNames: c.Spec.DNSNames}).VerifyHostname(name) == nil
}
