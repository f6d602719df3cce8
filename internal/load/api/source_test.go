package api

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/load"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestSources(t *testing.T) {
	for s, want := range map[sluicev1.Source]load.Source{
		sluicev1.Source_SOURCE_UNSPECIFIED: load.Untold, sluicev1.Source_SOURCE_OWNED: load.Owned, sluicev1.Source_SOURCE_EVENTUAL: load.Eventual,
		sluicev1.Source_SOURCE_LOST_STATE: load.Untold, -1: load.Untold, 1000: load.Untold,
	} {
		if got := sourceOf(s); got != want {
			t.Errorf("%v is %v, want %v", s, got, want)
		}
	}
}
