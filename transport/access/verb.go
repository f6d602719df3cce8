package access

import (
	"strings"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
)

// Verb is something that a caller may do in a domain.
type Verb uint8

const (
	// Check spends if the limits admit it, with any cost.
	Check Verb = iota
	// Read looks at counters, keys and what is counted of them, and changes nothing.
	Read
	// Charge spends whatever the limits say, and reports the load of pools.
	Charge
	// Refund gives back.
	Refund
	// Reset forgets counters.
	Reset
	// Admin is about the cluster and not about one domain.
	Admin
	verbCount
)

var verbNames = [verbCount]string{"check", "read", "charge", "refund", "reset", "admin"}

func (v Verb) String() string {
	if v >= verbCount {
		return "unknown"
	}
	return verbNames[v]
}

// VerbOf returns what a check of verb v does. Verbs that there are not are Admin: the limiter refuses them, and before
// that only those who may do everything get there.
func VerbOf(v bucket.Verb) Verb {
	switch v {
	case bucket.Check:
		return Check
	case bucket.Read:
		return Read
	case bucket.Charge:
		return Charge
	case bucket.Refund:
		return Refund
	case bucket.Reset:
		return Reset
	}
	return Admin
}

// verbs is a set of them, a bit for each.
type verbs uint8

func (s verbs) has(v Verb) bool { return s&(1<<v) != 0 }

func (s verbs) String() string {
	var list []string
	for v := range verbCount {
		if s.has(v) {
			list = append(list, v.String())
		}
	}
	return strings.Join(list, ", ")
}

// verbValues are the verbs as the file spells them.
var verbValues = func() (list []yamldoc.Named[Verb]) {
	for v := range verbCount {
		list = append(list, yamldoc.Named[Verb]{Name: v.String(), Value: v})
	}
	return list
}()
