package console

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// ruleSet is the response to GET /console/api/rules.
type ruleSet struct {
	Hash    string   `json:"hash"` // as in the events of the hub
	Domains []string `json:"domains"`
	Rules   []*rule  `json:"rules"`
}

// rule is one rule. Values of its Path may be patterns, or empty for any. Limits are in words, and so are Notes, which name
// everything that differs from the defaults.
type rule struct {
	Domain string   `json:"domain"`
	Name   string   `json:"name"`
	Path   []level  `json:"path"`
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Limits []string `json:"limits"`
	// Rates are the limits with a period and without a calendar as numbers, for the utilization of keys.
	Rates []admits `json:"rates"`
	Notes []string `json:"notes"`
}

// admits is the number of units that a limit admits in a period, in seconds.
type admits struct {
	Count  int64   `json:"count"`
	Period float64 `json:"period"`
}

type level struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Redact bool   `json:"redact,omitempty"`
}

// rules serves GET /console/api/rules.
func (a *API) rules(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.enter(r, access.Read, ""); err != nil {
		return err
	}
	set := ruleSet{Domains: []string{}, Rules: []*rule{}}
	if inForce := a.Rules(); inForce != nil {
		set.Hash, set.Domains = limiter.RulesHash(inForce), append(set.Domains, inForce.Domains()...)
		for _, one := range inForce.Rules() {
			j := ruleOf(one)
			for i := range j.Path {
				j.Path[i].Redact = inForce.Redacts(one, one.Domain, i, j.Path[i].Key)
			}
			set.Rules = append(set.Rules, j)
		}
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, set)
	return nil
}

func ruleOf(r *rules.Rule) *rule {
	j := &rule{Domain: r.Domain, Name: r.Name, File: r.File, Line: r.Line, Limits: []string{}, Rates: []admits{}, Notes: []string{}}
	for _, e := range r.Entries() {
		j.Path = append(j.Path, level{Key: e.Key, Value: e.Value})
	}
	if r.Otherwise {
		j.Path = append(j.Path, level{Key: "(otherwise)"})
	}
	if r.Unlimited {
		j.Limits = append(j.Limits, "unlimited")
	} else if r.Limits != nil {
		for i := range r.Limits.Len() {
			l := r.Limits.At(i)
			j.Limits = append(j.Limits, limitText(l))
			if !l.Unlimited && l.Align != bucket.AlignCalendar && l.Algorithm != bucket.Concurrency {
				j.Rates = append(j.Rates, admits{l.Count, l.Period.Seconds()})
			}
		}
	}
	note := func(set bool, text string) {
		if set {
			j.Notes = append(j.Notes, text)
		}
	}
	note(r.Shadow, "shadow mode: only watches")
	note(r.Quota, "quota mode")
	note(r.Consistency == rules.Eventual, "eventual")
	note(r.Global, "global, home "+r.Home)
	note(r.UnknownShare != rules.UnknownLimit, "unknown share "+r.UnknownShare.String())
	note(r.OnFailure != rules.FailShare, "on failure "+r.OnFailure.String())
	note(r.OnPartition != rules.FailShare, "on partition "+r.OnPartition.String())
	note(r.OnLostState == rules.LostDeny, "lost state denies")
	note(r.Limits != nil && r.Replication != rules.DefaultReplication(r.Limits), "replication "+r.Replication.String())
	note(r.NoDenialCache, "denials are not cached")
	note(len(r.Replaces) > 0, "replaces "+strings.Join(r.Replaces, ", "))
	usual, own := rules.DefaultReservation(r.Limits), r.Reservation
	note(own.MaxUnits != usual.MaxUnits, fmt.Sprintf("reservations of at most %d", own.MaxUnits))
	note(own.MaxOpen != usual.MaxOpen, fmt.Sprintf("at most %d open reservations", own.MaxOpen))
	note(own.TTL != usual.TTL || own.MaxTTL != usual.MaxTTL,
		fmt.Sprintf("reservations for %s, at most %s", durationText(own.TTL), durationText(own.MaxTTL)))
	note(own.OnExpiry != usual.OnExpiry, "on expiry "+own.OnExpiry.String())
	note(own.Estimate != usual.Estimate, fmt.Sprintf("reservations of %d by estimate", own.Estimate))
	if r.Elastic != nil {
		note(true, "elastic, pool "+r.Elastic.Pool.Name)
	}
	return j
}

// limitText describes a limit in words.
func limitText(l bucket.Limit) string {
	if l.Unlimited {
		return "unlimited"
	}
	period := "in " + durationText(l.Period)
	if l.Algorithm == bucket.Concurrency {
		period = "at a time"
	} else if l.Align == bucket.AlignCalendar {
		period = fmt.Sprintf("each calendar %v", l.Unit)
		if l.Zone != "" {
			period += " in " + l.Zone
		}
	}
	text := fmt.Sprintf("%d %s, %s", l.Count, period, strings.ReplaceAll(l.Algorithm.String(), "_", " "))
	if l.Burst > 0 {
		text += fmt.Sprintf(", burst %d", l.Burst)
	}
	if l.MinInterval > 0 {
		text += fmt.Sprintf(", at least %s apart", durationText(l.MinInterval))
	}
	if l.BlockFor > 0 {
		text += fmt.Sprintf(", blocks for %s", durationText(l.BlockFor))
	}
	if l.Soft > 0 {
		text += fmt.Sprintf(", %d %% soft", l.Soft)
	}
	return text
}

var zeros = strings.NewReplacer("h0m0s", "h", "m0s", "m")

// durationText is d without zeros at its end: 1m and not 1m0s.
func durationText(d time.Duration) string { return zeros.Replace(d.String()) }
