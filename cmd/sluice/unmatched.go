package main

import (
	"context"
	"strings"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// unmatched says why no rule matches a check; the zero value says nothing, for a check that a rule matches, a
// caller who may not look, and a node of an older version.
type unmatched struct {
	reason string
	// domains are those with rules that the caller may use, if the check's domain has none.
	domains []string
}

// noRule reports whether no rule matches a check, so that nothing was decided.
func noRule(d *sluicev1.Decision) bool {
	return d.Error == nil && d.Rule == "" && d.Source == sluicev1.Source_SOURCE_UNRULED
}

// explainUnmatched asks the node why no rule matches, if that is so.
func explainUnmatched(ctx context.Context, c sluicev1.SluiceServiceClient, check *sluicev1.Check, d *sluicev1.Decision) unmatched {
	if !noRule(d) && d.GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_UNKNOWN_DOMAIN {
		return unmatched{}
	}
	res, err := c.Inspect(ctx, &sluicev1.InspectRequest{Domain: check.Domain, Descriptor_: check.Descriptor_})
	if err != nil {
		return unmatched{} // the decision stands without it
	}
	return unmatched{res.Reason, res.Domains}
}

// known lists the domains, for the end of a sentence.
func (u unmatched) known() string {
	if len(u.domains) == 0 {
		return ""
	}
	shown := make([]string, len(u.domains))
	for i, d := range u.domains {
		shown[i] = printable(d)
	}
	return "; known: " + strings.Join(shown, ", ")
}

func (u unmatched) String() string {
	if u.reason == "" {
		return ""
	}
	return " (" + u.reason + u.known() + ")"
}
