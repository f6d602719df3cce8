package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// ClientAuth says what a server asks of its clients.
type ClientAuth int

const (
	// NoClient asks for no certificate.
	NoClient ClientAuth = iota
	// RequestClient asks for one, and refuses one that does not verify.
	RequestClient
	// RequireClient refuses clients without one as well.
	RequireClient
)

// ParseClientAuth reads none, request or require.
func ParseClientAuth(text string) (ClientAuth, error) {
	switch text {
	case "none":
		return NoClient, nil
	case "request":
		return RequestClient, nil
	case "require":
		return RequireClient, nil
	}
	return 0, fmt.Errorf("%q is none of none, request, require", text)
}

// ParseVersion reads 1.2 or 1.3.
func ParseVersion(text string) (uint16, error) {
	switch text {
	case "1.2":
		return tls.VersionTLS12, nil
	case "1.3":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("%q is neither 1.2 nor 1.3", text)
}

// Config of a Source. Errors call its files as Flags does.
type Config struct {
	// Cert and Key are files in PEM: the certificate with those between it and its
	// authority behind it, and its key, not encrypted. Required.
	Cert, Key string
	// CA is a file in PEM with the authorities of the other side, one or more. Empty where
	// nobody is asked for a certificate.
	CA string
	// Auth is what Server asks of clients.
	Auth ClientAuth
	// MinVersion is the oldest TLS that is spoken. 0 means 1.3.
	MinVersion uint16
	// Mutual: the certificate is for both sides of connections between nodes, so it has to
	// pass the check against CA itself, as server and as client, under the name Name.
	Mutual bool
	Name   string
	// Flags are what Cert, Key and CA are called in errors and log lines, for example --tls-cert.
	Flags [3]string
	// Every is the time between two readings. 0 means reload.DefaultEvery.
	Every time.Duration
	// Log gets a line when files change, and when a certificate nears its end. Nil logs nothing.
	Log *slog.Logger
}

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Cert == "":
		return errors.New("certs: Cert: is empty")
	case c.Key == "":
		return errors.New("certs: Key: is empty")
	case c.CA == "" && (c.Auth != NoClient || c.Mutual):
		return errors.New("certs: CA: is empty, and certificates shall be checked against it")
	case c.Mutual && c.Name == "":
		return errors.New("certs: Name: is empty")
	case c.MinVersion != 0 && c.MinVersion != tls.VersionTLS12 && c.MinVersion != tls.VersionTLS13:
		return fmt.Errorf("certs: MinVersion: %#x is neither TLS 1.2 nor 1.3", c.MinVersion)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS13
	}
	for i, name := range []string{"certificate", "key", "authorities"} {
		if c.Flags[i] == "" {
			c.Flags[i] = name
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// NameOf puts a member's name into a template such as {name}.sluice.default.svc.
func NameOf(template, member string) string { return strings.ReplaceAll(template, "{name}", member) }
