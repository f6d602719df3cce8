package console

import (
	"errors"
	"net/http"
	"time"

	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/watch"
)

// writePatience is how long a watcher may take to accept an event.
const writePatience = 10 * time.Second

// watch serves GET /v1/watch: the Hub's events, until the caller goes, may not any more, or is too slow.
func (d *Door) watch(w http.ResponseWriter, r *http.Request) error {
	if _, err := d.enter(r, access.Read, ""); err != nil {
		return err
	}
	watcher, err := d.Hub.Watch()
	switch {
	case errors.Is(err, watch.ErrTooMany), errors.Is(err, watch.ErrClosed):
		return &statusError{http.StatusServiceUnavailable, err.Error()}
	case err != nil:
		return err
	}
	defer watcher.Close()
	c := http.NewResponseController(w)
	// The server's time-outs are for calls; this one lasts. Not every writer has deadlines, and those in tests need none.
	_ = c.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_ = c.Flush()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case event, ok := <-watcher.Events():
			if !ok {
				return nil
			}
			if _, err := d.enter(r, access.Read, ""); err != nil {
				return nil // the token was taken away
			}
			_ = c.SetWriteDeadline(time.Now().Add(writePatience))
			if _, err := w.Write(event); err != nil {
				return nil
			}
			if err := c.Flush(); err != nil {
				return nil
			}
		}
	}
}
