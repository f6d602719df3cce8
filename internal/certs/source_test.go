package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/certs/mint"
)

// logBook keeps what is logged, for the goroutine that reads it.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// dir is where a node has its files.
type dir struct {
	testing.TB
	path string
}

func newDir(t testing.TB) dir { return dir{t, t.TempDir()} }

func (d dir) file(name string) string { return filepath.Join(d.path, name) }

func (d dir) write(name string, text []byte) {
	d.Helper()
	if err := os.WriteFile(d.file(name), text, 0o600); err != nil {
		d.Fatal(err)
	}
}

func authority(t testing.TB) *mint.CA {
	t.Helper()
	a, err := mint.NewCA("test", time.Now(), 24*time.Hour)
	do(t, err)
	return a
}

// issue makes a certificate of a node that is valid from an hour ago for so long from now.
func issue(t testing.TB, a *mint.CA, left time.Duration, names ...string) mint.Pair {
	t.Helper()
	now := time.Now()
	p, err := a.Issue(mint.Leaf{CommonName: "n", Hosts: names, Server: true, Client: true, From: now.Add(-time.Hour), Until: now.Add(left)})
	do(t, err)
	return p
}

func (d dir) pair(p mint.Pair) {
	d.Helper()
	d.write("cert", p.Cert)
	d.write("key", p.Key)
}

func (d dir) mutual(name string) Config {
	return Config{
		Cert: d.file("cert"), Key: d.file("key"), CA: d.file("ca"), Mutual: true, Name: name,
		Flags: [3]string{"--cert", "--key", "--ca"},
	}
}

// handshake connects a client to a server, and returns what each says about it.
func handshake(t testing.TB, server, client *tls.Config) (sees tls.ConnectionState, s, c error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	deadline := time.Now().Add(10 * time.Second)
	_, _ = a.SetDeadline(deadline), b.SetDeadline(deadline)
	end := make(chan error, 1)
	srv := tls.Server(a, server)
	go func() {
		err := srv.Handshake()
		if err == nil {
			_, err = srv.Write([]byte{1})
		}
		end <- err
		if err != nil {
			a.Close()
		}
	}()
	conn := tls.Client(b, client)
	if c = conn.Handshake(); c == nil {
		// With 1.3 a server rejects the client's certificate after the client's handshake is over.
		_, c = io.ReadFull(conn, make([]byte, 1))
	}
	b.Close()
	s = <-end
	return srv.ConnectionState(), s, c
}

func TestOpenRejects(t *testing.T) {
	a, other := authority(t), authority(t)
	good := issue(t, a, time.Hour, "n1")
	another := issue(t, a, time.Hour, "n1")
	onlyServer, err := a.Issue(mint.Leaf{CommonName: "n1", Hosts: []string{"n1"}, Server: true, From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
	do(t, err)
	for name, c := range map[string]struct {
		cert, key, ca []byte
		want          []string
	}{
		"key of another":  {good.Cert, another.Key, a.PEM, []string{"--cert, --key: ", "does not match"}},
		"no certificate":  {[]byte("cert"), good.Key, a.PEM, []string{"--cert, --key: ", "PEM"}},
		"no key":          {good.Cert, nil, a.PEM, []string{"--key: ", "no such file"}},
		"key for CA":      {good.Cert, good.Key, good.Key, []string{"--ca: ", "block 1 is a PRIVATE KEY"}},
		"text for CA":     {good.Cert, good.Key, []byte("ca"), []string{"--ca: ", "no certificate in PEM"}},
		"broken CA":       {good.Cert, good.Key, bytes.Replace(a.PEM, []byte("\nMI"), []byte("\nMA"), 1), []string{"--ca: ", "block 1"}},
		"another CA":      {good.Cert, good.Key, other.PEM, []string{"--cert, --ca: ", "unknown authority"}},
		"only for server": {onlyServer.Cert, onlyServer.Key, a.PEM, []string{"--cert, --ca: ", "as a client"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			for file, text := range map[string][]byte{"cert": c.cert, "key": c.key, "ca": c.ca} {
				if text != nil {
					d.write(file, text)
				}
			}
			_, err := Open(d.mutual("n1"))
			if err == nil {
				t.Fatal("Open succeeds")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
	d := newDir(t)
	d.write("ca", a.PEM)
	d.pair(issue(t, a, -time.Minute, "n1"))
	if _, err := Open(d.mutual("n1")); err == nil || !strings.Contains(err.Error(), "--cert: ") || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	d.pair(issue(t, a, time.Hour, "n2"))
	if _, err := Open(d.mutual("n1")); err == nil || !strings.Contains(err.Error(), `not one for "n1"`) {
		t.Errorf("another's name: %v", err)
	}
	for want, c := range map[string]Config{
		"Cert": {}, "Key": {Cert: "x"}, "CA": {Cert: "x", Key: "x", Auth: RequestClient},
		"Name": {Cert: "x", Key: "x", CA: "x", Mutual: true}, "MinVersion": {Cert: "x", Key: "x", MinVersion: 1},
	} {
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "certs: "+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Who is let in, by what is asked of clients.
func TestClients(t *testing.T) {
	a, other := authority(t), authority(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM)
	show := func(p mint.Pair) []tls.Certificate {
		c, err := tls.X509KeyPair(p.Cert, p.Key)
		do(t, err)
		return []tls.Certificate{c}
	}
	clients := map[string][]tls.Certificate{
		"none":    nil,
		"good":    show(issue(t, a, time.Hour, "x")),
		"expired": show(issue(t, a, -time.Minute, "x")),
		"strange": show(issue(t, other, time.Hour, "x")),
	}
	for _, c := range []struct {
		auth ClientAuth
		lets []string
	}{
		{NoClient, []string{"none", "good", "expired", "strange"}},
		{RequestClient, []string{"none", "good"}},
		{RequireClient, []string{"good"}},
	} {
		d := newDir(t)
		d.write("ca", a.PEM)
		d.pair(issue(t, a, time.Hour, "api"))
		source, err := Open(Config{Cert: d.file("cert"), Key: d.file("key"), CA: d.file("ca"), Auth: c.auth})
		do(t, err)
		for name, certificates := range clients {
			client := &tls.Config{ServerName: "api", RootCAs: roots}
			if certificates != nil {
				// Also shown where the server does not name the authority.
				client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificates[0], nil }
			}
			_, s, cl := handshake(t, source.Server("h2"), client)
			want := strings.Contains(strings.Join(c.lets, " "), name)
			if (s == nil) != want || (cl == nil) != want {
				t.Errorf("auth %d, certificate %s: let in is %v: server %v, client %v", c.auth, name, !want, s, cl)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	a := authority(t)
	d := newDir(t)
	d.pair(issue(t, a, time.Hour, "api"))
	for _, c := range []struct {
		least, speaks uint16
		ok            bool
	}{
		{0, tls.VersionTLS13, true}, {0, tls.VersionTLS12, false},
		{tls.VersionTLS12, tls.VersionTLS12, true}, {tls.VersionTLS12, tls.VersionTLS11, false},
	} {
		source, err := Open(Config{Cert: d.file("cert"), Key: d.file("key"), MinVersion: c.least})
		do(t, err)
		_, s, _ := handshake(t, source.Server(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: c.speaks})
		if (s == nil) != c.ok {
			t.Errorf("at least %#x, client speaks %#x: %v", c.least, c.speaks, s)
		}
	}
}

// followed opens a source and follows its files until the end of the test, in a bubble.
func followed(t *testing.T, c Config, log io.Writer) *Source {
	t.Helper()
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := Open(c)
	do(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// Two nodes exchange authority and certificates as an operator does, and a handshake between them
// works after each step; at the end, one with the old certificate is turned away.
func TestRotation(t *testing.T) {
	dirs := [2]dir{newDir(t), newDir(t)}
	synctest.Test(t, func(t *testing.T) {
		before, after := authority(t), authority(t)
		var sources [2]*Source
		names := [2]string{"n1", "n2"}
		for i, d := range dirs {
			d.write("ca", before.PEM)
			d.pair(issue(t, before, 100*time.Hour, names[i]))
			sources[i] = followed(t, d.mutual(names[i]), io.Discard)
		}
		both := func(step string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			for i := range 2 {
				state, s, c := handshake(t, sources[i].Server("h2"), sources[1-i].Client("h2"))
				if err := errors.Join(s, c); err != nil {
					t.Errorf("%s: %v", step, err)
				} else if err := CheckNode(state, names[1-i]); err != nil {
					t.Errorf("%s: %v", step, err)
				}
			}
		}
		both("before")
		old := sources[0].Client("h2")
		oldPair, err := tls.LoadX509KeyPair(dirs[0].file("cert"), dirs[0].file("key"))
		do(t, err)
		for step, change := range []func(i int){
			func(i int) { dirs[i].write("ca", append(before.PEM[:len(before.PEM):len(before.PEM)], after.PEM...)) },
			func(i int) { dirs[i].pair(issue(t, after, 100*time.Hour, names[i])) },
			func(i int) { dirs[i].write("ca", after.PEM) },
		} {
			for i := range 2 {
				change(i)
				both("step " + string(rune('1'+step)))
			}
		}
		old.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &oldPair, nil }
		if _, s, _ := handshake(t, sources[1].Server("h2"), old); s == nil {
			t.Error("the old certificate is still let in")
		}
	})
}

// What does not pass leaves the pair in force as it is, and says why.
func TestFaultyRotation(t *testing.T) {
	d := newDir(t)
	synctest.Test(t, func(t *testing.T) {
		a, other := authority(t), authority(t)
		d.write("ca", a.PEM)
		first := issue(t, a, 10*time.Hour, "n1")
		d.pair(first)
		var log logBook
		s := followed(t, d.mutual("n1"), &log)
		expires := s.Expires()
		for i, c := range []struct {
			change func()
			want   string
		}{
			{func() { d.write("key", issue(t, a, time.Hour, "n1").Key) }, "does not match"},
			{func() { d.pair(issue(t, a, -time.Second, "n1")) }, "expired"},
			{func() { d.pair(issue(t, other, time.Hour, "n1")) }, "unknown authority"},
			{func() { d.pair(issue(t, a, time.Hour, "n2")) }, "not one for"},
			{func() { d.pair(first); d.write("ca", other.PEM) }, "unknown authority"},
		} {
			c.change()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			st := s.Files().Status()
			if st.LastError == nil || !strings.Contains(st.LastError.Error(), c.want) || st.Failures != uint64(i+1) || !s.Expires().Equal(expires) {
				t.Errorf("%s: %+v, expires %v", c.want, st, s.Expires())
			}
			if !strings.Contains(log.String(), c.want) {
				t.Errorf("%s is not logged:\n%s", c.want, log.String())
			}
		}
		if strings.Contains(log.String(), "PRIVATE") {
			t.Errorf("a key is logged:\n%s", log.String())
		}
	})
}

// The end of a certificate is announced when a tenth of its life is left, and not every minute.
func TestExpiryIsAnnounced(t *testing.T) {
	d := newDir(t)
	synctest.Test(t, func(t *testing.T) {
		a := authority(t)
		d.pair(issue(t, a, 99*time.Hour, "api")) // of 100
		var log logBook
		s := followed(t, Config{Cert: d.file("cert"), Key: d.file("key"), Every: 10 * time.Minute}, &log)
		count := func() int { synctest.Wait(); return strings.Count(log.String(), "a tenth of the certificate's life") }
		time.Sleep(88*time.Hour + 30*time.Minute)
		if n := count(); n != 0 {
			t.Errorf("said %d times with more than a tenth left", n)
		}
		time.Sleep(time.Hour)
		if n := count(); n != 1 {
			t.Errorf("said %d times within half an hour\n%s", n, log.String())
		}
		time.Sleep(6 * time.Hour)
		if n := count(); n != 2 {
			t.Errorf("said %d times after six hours more", n)
		}
		d.pair(issue(t, a, 99*time.Hour, "api"))
		time.Sleep(24 * time.Hour)
		if n := count(); n != 2 {
			t.Errorf("said %d times although there is a new one, until %v", n, s.Expires())
		}
	})
}

func TestCheckNode(t *testing.T) {
	a := authority(t)
	for _, c := range []struct {
		san, template, member, region string
		ok                            bool
	}{
		{"n1", "{name}", "n1", "eu", true},
		{"n1", "{name}", "n2", "eu", false},
		{"*.sluice.default.svc", "{name}.sluice.default.svc", "sluice-0", "eu", true},
		{"*.sluice.default.svc", "{name}", "sluice-0", "eu", false},
		{"sluice-0.sluice.default.svc", "{name}.sluice.default.svc", "sluice-1", "eu", false},
		{"sluice.peers", "sluice.peers", "n7", "eu", true},
		{"10.0.0.1", "{name}", "10.0.0.1", "eu", true},
		{"*.eu.sluice.example", "{name}.{region}.sluice.example", "n1", "eu", true},
		{"*.eu.sluice.example", "{name}.{region}.sluice.example", "n1", "us", false},
		{"*.eu.sluice.example", "{name}.{region}.sluice.example", "n1", "", false},
	} {
		p := issue(t, a, time.Hour, c.san)
		pair, err := tls.X509KeyPair(p.Cert, p.Key)
		do(t, err)
		state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
		if err := CheckNode(state, NameOf(c.template, c.member, c.region)); (err == nil) != c.ok {
			t.Errorf("certificate %s, template %s, member %s: %v", c.san, c.template, c.member, err)
		}
	}
	p, err := a.Issue(mint.Leaf{CommonName: "n1", Hosts: []string{"n1"}, Client: true, From: time.Now(), Until: time.Now().Add(time.Hour)})
	do(t, err)
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	do(t, err)
	client := tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
	if err := CheckNode(client, "n1"); err == nil || !strings.Contains(err.Error(), "not one for a server") {
		t.Errorf("a client's certificate: %v", err)
	}
	if err := CheckNode(tls.ConnectionState{}, "n1"); err == nil {
		t.Error("no certificate passes")
	}
}

func FuzzAuthorities(f *testing.F) {
	a := authority(f)
	f.Add(a.PEM)
	f.Add(append(a.PEM[:len(a.PEM):len(a.PEM)], a.PEM...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if pool, err := parseCAs(text); (pool == nil) == (err == nil) {
			t.Fatalf("%v, %v", pool, err)
		}
	})
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
