package door

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/sluice-project/sluice/internal/load"
)

// authorize asks by GET /v1/authorize/DOMAIN/, as a proxy asks that appends the path. A header has
// the key; what is checked is the rule file's affair.
type authorize struct{ web }

func openAuthorize(c Config) (Door, error) {
	if c.Header == "" {
		return nil, errors.New("header: is empty; name the header that the domain's authorize makes a descriptor of")
	}
	return &authorize{web{c, newHTTPClient(&c)}}, nil
}

// NewCaller implements load.Target.
func (a *authorize) NewCaller(int) load.Caller { return authorizeCaller{&a.web} }

type authorizeCaller struct{ *web }

// Call implements load.Caller.
func (c authorizeCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	for _, k := range keys {
		target := c.config.url(node, "/v1/authorize/"+url.PathEscape(c.config.Domain)+"/")
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return err
		}
		req.Header.Set(c.config.Header, k)
		if err := c.show(req, "Sluice-Token", ""); err != nil {
			return err
		}
		a, err := fetch(c.client, req)
		switch {
		case err != nil:
			return err
		case a.status == http.StatusOK && a.limited:
			seen.Count(load.Untold, true)
		case a.status == http.StatusOK:
			seen.Count(load.Unruled, true)
		case a.limited:
			seen.Count(load.Untold, false)
		default:
			return fmt.Errorf("header %s: %w", c.config.Header, problem(a))
		}
	}
	return nil
}
