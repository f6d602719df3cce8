package console

import (
	"fmt"
	"testing"

	"github.com/sluice-project/sluice/rules"
)

// TestOtherwiseIsALevel: an otherwise rule stands beside the rules of its level, not in the place of the one above.
func TestOtherwiseIsALevel(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(
		"domain: d\notherwise: {limits: [1/1s]}\ndescriptors: [{key: a, limits: [1/1s], cache_denials: false, otherwise: {limits: [1/1s]}}]\n")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range set.Rules() {
		j := ruleOf(r)
		got += fmt.Sprintln(j.Name, j.Path, j.Notes)
	}
	if want := "d/a [{a  false}] [denials are not cached]\nd/a.otherwise [{a  false} {(otherwise)  false}] []\nd.otherwise [{(otherwise)  false}] []\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
