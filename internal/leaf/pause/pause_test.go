package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		if !For(ctx, time.Second) || !For(ctx, 0) || time.Since(begun) != time.Second {
			t.Errorf("waited %v", time.Since(begun))
		}
		if For(ctx, time.Hour) || For(ctx, -1) || time.Since(begun) != time.Minute {
			t.Errorf("waited %v for the end of a context", time.Since(begun))
		}
	})
}
