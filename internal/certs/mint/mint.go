// Package mint makes certificates for trials and tests: a CA, and certificates of nodes and clients that it signs. Keys
// are ECDSA on P-256. The CA is not for production: it keeps no list of its certificates and revokes none.
package mint

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

// CA signs certificates.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	// PEM is its certificate.
	PEM []byte
}

// Pair is a certificate with its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// Leaf describes a certificate of a node or client.
type Leaf struct {
	// CommonName is for people: no check uses it.
	CommonName string
	// Hosts are DNS names and IP addresses. A client needs none.
	Hosts []string
	// Server and Client are the sides of a connection that it is for.
	Server, Client bool
	// From and Until bound its validity.
	From, Until time.Time
}

// NewCA makes a CA that is valid from an hour before now until life after now.
func NewCA(commonName string, now time.Time, life time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the CA: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate of the CA: %w", err)
	}
	return &CA{cert: cert, key: key, PEM: encode("CERTIFICATE", der)}, nil
}

// KeyPEM returns the CA's key.
func (a *CA) KeyPEM() ([]byte, error) { return encodeKey(a.key) }

// Issue signs a certificate for a new key.
func (a *CA) Issue(l Leaf) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", l.CommonName, err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: l.CommonName}, NotBefore: l.From, NotAfter: l.Until,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if l.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if len(template.ExtKeyUsage) == 0 {
		return Pair{}, errors.New("a certificate must be for a server or a client")
	}
	for _, host := range l.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate of %s: %w", l.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", l.CommonName, err)
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
