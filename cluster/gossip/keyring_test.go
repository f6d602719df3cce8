package gossip

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"pgregory.net/rapid"

	_ "github.com/sluicecluster/sluice/test/seeded"
)

// testKey is a key of n bytes, different for each seed.
func testKey(seed byte, n int) []byte { return bytes.Repeat([]byte{seed}, n) }

func keyText(key []byte) string { return base64.StdEncoding.EncodeToString(key) }

// ringOf is a keyring of keys of 32 bytes.
func ringOf(t testing.TB, seeds ...byte) Keyring {
	t.Helper()
	var text strings.Builder
	for _, s := range seeds {
		fmt.Fprintln(&text, keyText(testKey(s, 32)))
	}
	k, err := ParseKeyring([]byte(text.String()))
	must(t, err)
	return k
}

func TestParseKeyring(t *testing.T) {
	a, b, c := testKey(1, 16), testKey(2, 24), testKey(3, 32)
	k, err := ParseKeyring([]byte("# the primary\n" + keyText(a) + "\n\n \t" + keyText(b) + " \r\n#" + keyText(c) + "\n" + keyText(c)))
	must(t, err)
	if want := [][]byte{a, b, c}; !slices.EqualFunc(k.keys, want, bytes.Equal) {
		t.Errorf("got %x", k.keys)
	}
	var many strings.Builder
	for i := range MaxKeys + 1 {
		fmt.Fprintln(&many, keyText(testKey(byte(i), 16)))
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"", "no key"},
		"comments":    {"# nothing\n\n", "no key"},
		"not base64":  {keyText(a) + "\nsecret!\n", "line 2 is not base64"},
		"no padding":  {strings.TrimRight(keyText(a), "="), "line 1 is not base64"},
		"hex":         {strings.Repeat("0af1", 16), "line 1 is a key of 48 bytes"},
		"short":       {keyText(testKey(1, 15)), "line 1 is a key of 15 bytes"},
		"long":        {keyText(testKey(1, 33)), "line 1 is a key of 33 bytes"},
		"two in line": {keyText(a) + " " + keyText(b), "line 1 is not base64"},
		"twice":       {keyText(a) + "\n" + keyText(b) + "\n" + keyText(a), "line 3 repeats"},
		"too many":    {many.String(), "line 17: more than 16"},
	} {
		_, err := ParseKeyring([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the line: %v", name, err)
		}
	}
}

// No way of printing shows a key.
func TestKeyringPrintsNoKey(t *testing.T) {
	k := ringOf(t, 0xab, 0xcd)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&out, verb+"\n", k)
		fmt.Fprintf(&out, verb+"\n", Config{Name: "n", Keyring: k})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "keyring", k)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "keyring", k)
	_ = json.NewEncoder(&out).Encode([]any{k})
	for _, shown := range []string{"abab", "ABAB", "171 171", "0xab, 0xab", keyText(testKey(0xab, 32))[:8], `\xab`} {
		if strings.Contains(out.String(), shown) {
			t.Errorf("%q is shown in\n%s", shown, out.String())
		}
	}
	if k.Primary() != ringOf(t, 0xab).Primary() || k.Primary() == ringOf(t, 0xcd).Primary() || len(k.Primary()) != 8 {
		t.Errorf("Primary is %q", k.Primary())
	}
}

func FuzzParseKeyring(f *testing.F) {
	f.Add([]byte(keyText(testKey(1, 16)) + "\n# x\n" + keyText(testKey(2, 32))))
	f.Add([]byte("\n\n=\n"))
	f.Add([]byte(keyText(testKey(1, 24)) + "\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := ParseKeyring(text)
		if err != nil {
			if k.Len() != 0 {
				t.Fatalf("%d keys with the error %v", k.Len(), err)
			}
			return
		}
		if _, err := newKeyring(k); err != nil || k.Len() < 1 || k.Len() > MaxKeys {
			t.Fatalf("%d keys that cannot be used: %v", k.Len(), err)
		}
		var again strings.Builder
		for _, key := range k.keys {
			fmt.Fprintln(&again, keyText(key))
		}
		if same, err := ParseKeyring([]byte(again.String())); err != nil || !slices.EqualFunc(same.keys, k.keys, bytes.Equal) {
			t.Fatalf("written and read again: %v", err)
		}
	})
}

// Whatever the keys before and after, at no step is one missing that both have, and nothing is
// removed but from the end, where readers are not disturbed.
func TestKeyringSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfNDistinct(rapid.ByteRange(1, 9), 1, 6, rapid.ID)
		before, after := some.Draw(t, "before"), some.Draw(t, "after")
		list, err := memberlist.NewKeyring(keysOf(before), testKey(before[0], 16))
		must(t, err)
		next := keysOf(after)
		for _, s := range keyringSteps(list.GetKeys(), next) {
			old := list.GetKeys()
			if s.call == 'r' && !bytes.Equal(old[len(old)-1], s.key) {
				t.Fatal("removes a key that is not the last")
			}
			must(t, s.do(list))
			for _, key := range keysOf(before) {
				if index(next, key) >= 0 && index(list.GetKeys(), key) < 0 {
					t.Fatal("a key that stays is missing")
				}
			}
		}
		now := list.GetKeys()
		if len(now) != len(next) || !bytes.Equal(now[0], next[0]) {
			t.Fatalf("%d keys, primary %x; want %d, %x", len(now), now[0], len(next), next[0])
		}
		for _, key := range next {
			if index(now, key) < 0 {
				t.Fatal("a new key is missing")
			}
		}
	})
}

func keysOf(seeds []byte) (keys [][]byte) {
	for _, s := range seeds {
		keys = append(keys, testKey(s, 16))
	}
	return keys
}

// The usual exchange of a key uses none as the primary but the old one and the new one.
func TestKeyringStepsOfARotation(t *testing.T) {
	for _, c := range []struct {
		before, after []byte
		want          string
	}{
		{[]byte{1}, []byte{1, 2}, "a2"},
		{[]byte{1, 2}, []byte{2, 1}, "u2"},
		{[]byte{2, 1}, []byte{2}, "r1"},
		{[]byte{1}, []byte{2}, "a2 u2 r1"},
		{[]byte{1, 2}, []byte{1}, "r2"},
		{[]byte{1, 2, 3}, []byte{1, 3}, "u3 u1 r2"},
		{[]byte{1, 2}, []byte{1, 2}, ""},
	} {
		var got []string
		for _, s := range keyringSteps(keysOf(c.before), keysOf(c.after)) {
			got = append(got, fmt.Sprintf("%c%d", s.call, s.key[0]))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v to %v: %v, want %s", c.before, c.after, got, c.want)
		}
	}
}

// Readers run while keys are exchanged; the race detector watches.
func TestKeyringExchangedWhileRead(t *testing.T) {
	r, err := newKeyring(ringOf(t, 1, 2, 3))
	must(t, err)
	done := make(chan struct{})
	missing := make(chan bool, 1)
	go func() {
		defer close(missing)
		for {
			select {
			case <-done:
				return
			default:
			}
			if index(r.list.GetKeys(), testKey(1, 32)) < 0 {
				missing <- true
				return
			}
		}
	}()
	for range 500 {
		for _, next := range []Keyring{ringOf(t, 1, 3), ringOf(t, 4, 1), ringOf(t, 1, 2, 3)} {
			must(t, r.set(next))
		}
	}
	close(done)
	if <-missing {
		t.Error("a key that all rings have was missing for a moment")
	}
}

func TestSetKeyringRejects(t *testing.T) {
	plain := openReal(t, loopback("plain"))
	if err := plain.SetKeyring(ringOf(t, 1)); !errors.Is(err, ErrNotEncrypted) {
		t.Errorf("keys for gossip in clear: %v", err)
	}
	c := loopback("encrypted")
	c.Keyring = ringOf(t, 1)
	g := openReal(t, c)
	if err := g.SetKeyring(Keyring{}); err == nil || g.Keyring().Len() != 1 {
		t.Errorf("no keys: %v", err)
	}
}
