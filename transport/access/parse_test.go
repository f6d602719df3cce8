package access

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/limiter"
)

func TestFaults(t *testing.T) {
	secret, digest := token(t, 7)
	const good = "    grants: [{domains: [d], verbs: [check]}]\n"
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", "f.yaml:1: names no caller and has no grants for anonymous ones, so all calls would be rejected"},
		{"nothing said", "callers:\n", "f.yaml:1: names no caller and has no grants for anonymous ones, so all calls would be rejected"},
		{"no YAML", "callers: [", "f.yaml:1: not YAML: did not find expected node content"},
		{"a list", "- name: x\n", "f.yaml:1: must be a mapping (key: value), not a list"},
		{"unknown key", "caller: []\n", `f.yaml:1: caller: unknown key "caller"; want one of callers, anonymous`},
		{"unknown key below", "callers:\n  - name: x\n    certificates: [cn:x]\n    token: []\n" + good, `f.yaml:4: callers[0].token: unknown key "token"; want one of name, tokens, certificates, grants, max_keys`},
		{"no name", "callers:\n  - tokens: [" + digest.String() + "]\n" + good, "f.yaml:2: callers[0].name: is missing: logs and messages call the caller by it"},
		{"a name of two words", "callers:\n  - name: a b\n    certificates: [cn:x]\n" + good, "f.yaml:2: callers[0].name: must be 1 to 64 printable ASCII characters without spaces and quotes"},
		{"a name twice", "callers:\n  - name: a\n    certificates: [cn:x]\n" + good + "  - name: a\n    certificates: [cn:y]\n" + good, "f.yaml:5: callers[1].name: there is a caller of this name already, at line 2"},
		{"nobody", "callers:\n  - name: a\n" + good, "f.yaml:2: callers[0]: has neither tokens nor certificates, so no call could authenticate as this caller; anonymous is for unauthenticated calls"},
		{"no grants", "callers:\n  - name: a\n    certificates: [cn:x]\n", "f.yaml:2: callers[0].grants: is missing: say what the caller may do"},
		{"empty grants", "callers:\n  - name: a\n    certificates: [cn:x]\n    grants: []\n", "f.yaml:4: callers[0].grants: is empty; give at least one grant"},
		{"null caller", "callers:\n  -\n", "f.yaml:2: callers[0]: is empty; give it a name, tokens or certificates, and grants"},
		{"empty tokens", "callers:\n  - name: a\n    tokens: []\n" + good, "f.yaml:3: callers[0].tokens: is empty; list digests of tokens, or leave it out"},
		{"a token itself", "callers:\n  - name: a\n    tokens: [" + secret + "]\n" + good, "f.yaml:3: callers[0].tokens[0]: is a token itself, and every reader of the file knows it now: make a new one with `sluice token`, and put the digest that it prints here"},
		{"a password", "callers:\n  - name: a\n    tokens: [hunter2]\n" + good, "f.yaml:3: callers[0].tokens[0]: must be sha256: and 64 hexadecimal digits, as `sluice token` prints it"},
		{"a short digest", "callers:\n  - name: a\n    tokens: [sha256:abcd]\n" + good, "f.yaml:3: callers[0].tokens[0]: must be sha256: and 64 hexadecimal digits, as `sluice token` prints it"},
		{"a token twice", "callers:\n  - name: a\n    tokens:\n      - " + digest.String() + "\n" + good + "  - name: b\n    tokens:\n      - " + digest.String() + "\n" + good, "f.yaml:8: callers[1].tokens[0]: the same token stands at line 4 already"},
		{"no kind", "callers:\n  - name: a\n    certificates: [shop.example]\n" + good, `f.yaml:3: callers[0].certificates[0]: must be uri:, dns: or cn: and the name, not "shop.example"`},
		{"no name behind it", "callers:\n  - name: a\n    certificates: ['cn:']\n" + good, `f.yaml:3: callers[0].certificates[0]: must be uri:, dns: or cn: and the name, not "cn:"`},
		{"a name of two", "callers:\n  - name: a\n    certificates: [cn:x]\n" + good + "  - name: b\n    certificates: [cn:x]\n" + good, "f.yaml:6: callers[1].certificates[0]: the same name stands at line 3 already"},
		{"no verbs", "anonymous:\n  - domains: [d]\n", "f.yaml:2: anonymous[0].verbs: is missing: a grant has domains and verbs"},
		{"no domains", "anonymous:\n  - verbs: [read]\n", "f.yaml:2: anonymous[0].domains: is missing: a grant has domains and verbs"},
		{"no verb", "anonymous:\n  - {domains: [d], verbs: []}\n", "f.yaml:2: anonymous[0].verbs: is empty; list at least one of check, read, charge, refund, reset, admin"},
		{"unknown verb", "anonymous:\n  - {domains: [d], verbs: [write]}\n", `f.yaml:2: anonymous[0].verbs[0]: must be one of check, read, charge, refund, reset, admin, not "write"`},
		{"empty domain", "anonymous:\n  - {domains: [''], verbs: [read]}\n", `f.yaml:2: anonymous[0].domains[0]: is empty; "*" is all domains`},
		{"a star within", "anonymous:\n  - {domains: ['a*b'], verbs: [read]}\n", `f.yaml:2: anonymous[0].domains[0]: "a*b" has a star that is not its end; only what domains begin with can be given`},
		{"a long domain", "anonymous:\n  - {domains: [" + strings.Repeat("d", 1025) + "], verbs: [read]}\n", "f.yaml:2: anonymous[0].domains[0]: has 1025 bytes, and a check cannot carry more than 1024"},
		{"an admin of some domains", "anonymous:\n  - {domains: ['d*'], verbs: [read, admin]}\n", `f.yaml:2: anonymous[0].verbs: admin is about the whole cluster: grant it separately, in the domains ["*"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(c.file))
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("%v is no *Error", err)
			}
		})
	}
}

// TestFaultsKeepSecrets puts a token where it does not belong.
func TestFaultsKeepSecrets(t *testing.T) {
	secret, _ := token(t, 9)
	for _, file := range []string{
		secret, "- " + secret, secret + ": 1", "callers: " + secret, "callers: [" + secret + "]",
		"callers: [{name: x, tokens: " + secret + "}]", "callers: [{name: x, tokens: [" + secret + "]}]",
		"callers: [{name: x, tokens: [{" + secret + ": 1}]}]", "callers: [{name: x, tokens: [Bearer " + secret + "]}]",
		"callers: [{name: x, certificates: [" + secret + "]}]", "callers: [{name: x, token: " + secret + "}]",
		"anonymous: [{domains: [a*" + secret + "], verbs: [" + secret + "]}]", "callers: [{name: '" + secret + " x'}]",
		"a: *" + secret, "a: !!int " + secret, "a: {" + secret + ": 1, " + secret + ": 2}",
	} {
		_, err := Parse("f.yaml", []byte(file))
		if err == nil {
			t.Errorf("%s: no fault", file)
		} else if strings.Contains(err.Error(), secret[len(tokenPrefix):][:8]) {
			t.Errorf("a fault of %q repeats the token: %v", file, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	_, digest := token(f, 1)
	f.Add([]byte("callers:\n  - name: a\n    tokens: [" + digest.String() + "]\n    certificates: [cn:a]\n    grants: [{domains: [d, 'e*'], verbs: [check, read]}]\nanonymous:\n  - {domains: ['*'], verbs: [admin]}\n"))
	f.Add([]byte("a: &a [*a]\ncallers: *a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f.yaml", data)
		switch {
		case err == nil && p.Callers() == 0 && p.anonymous == nil:
			t.Error("a policy that lets nobody in")
		case err != nil && p != nil:
			t.Error("a policy and faults")
		case err != nil:
			return
		}
		// Nothing but the digests of the file opens it.
		if _, never := token(t, 0xfe); p.tokens[never] != nil {
			t.Error("a token that is not in the file")
		}
		if a := p.anonymous; a != nil && a.May(Admin, "") && !strings.Contains(string(data), "*") {
			t.Error("an anonymous admin without a star")
		}
	})
}

// A caller with max_keys has an account of its own.
func TestMaxKeys(t *testing.T) {
	_, digest := token(t, 7)
	p, err := Parse("f", []byte("callers:\n"+
		"  - {name: a, max_keys: 5000, tokens: ["+digest.String()+"], grants: [{domains: [d], verbs: [check]}]}\n"+
		"  - {name: b, certificates: ['cn:b'], grants: [{domains: [d], verbs: [check]}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if n := p.MaxKeys(); len(n) != 1 || n["(caller) a"] != 5000 {
		t.Errorf("%v", n)
	}
	pass, rejected := NewGuard(p, nil, nil).Enter(0, &Identity{shown: aToken, digest: digest})
	b := limiter.NewBatch()
	b.Add().Domain = "d"
	if e := pass.Restrict(b); rejected != nil || e != nil || b.Account != "(caller) a" || pass.Account() != "(caller) a" {
		t.Errorf("%v, %v; the account of the batch is %q, of the caller %q", rejected, e, b.Account, pass.Account())
	}
	for _, text := range []string{"0", "x", "1000000000001"} {
		_, err := Parse("f", []byte("callers:\n  - {name: b, max_keys: "+text+", certificates: ['cn:b'], grants: [{domains: [d], verbs: [check]}]}\n"))
		if err == nil || !strings.Contains(err.Error(), "callers[0].max_keys: must be") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
