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

// explainUnmatched asks the node, as its operator if this user is, why no rule matches, if that is so.
func (f clientFlags) explainUnmatched(ctx context.Context, check *sluicev1.Check, d *sluicev1.Decision) (why unmatched) {
	if !noRule(d) && d.GetError().GetCode() != sluicev1.ErrorCode_ERROR_CODE_UNKNOWN_DOMAIN {
		return why
	}
	f.operator = true
	// The decision stands without it.
	_ = f.ask(ctx, func(ctx context.Context, c sluicev1.SluiceServiceClient) error {
		res, err := c.Inspect(ctx, &sluicev1.InspectRequest{Domain: check.Domain, Descriptor_: check.Descriptor_})
		why = unmatched{res.GetReason(), res.GetDomains()}
		return err
	})
	return why
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
