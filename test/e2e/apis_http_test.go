package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/test/process"
)

// request sends an HTTP request with a body and headers ("Name: value") and returns the answer.
func request(ctx context.Context, method, url, body string, headers ...string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), errors.Join(err, res.Body.Close())
}

// gubernatorHTTP asks gubernator's API by its HTTP calls, with a limit a day.
type gubernatorHTTP struct {
	nodes []*process.Node
	limit int
}

// Call implements load.Caller.
func (g gubernatorHTTP) Call(ctx context.Context, node int, keys []string, seen *load.Counts) error {
	for _, k := range keys {
		status, body, err := request(ctx, http.MethodPost, "http://"+g.nodes[node].HTTP+"/v1/GetRateLimits", fmt.Sprintf(
			`{"requests": [{"name": "shop", "unique_key": %q, "hits": "1", "limit": "%d", "duration": "86400000"}]}`, k, g.limit))
		if err != nil {
			return err
		}
		var answer struct {
			Responses []struct{ Status, Error string }
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK || len(answer.Responses) != 1 || answer.Responses[0].Error != "" {
			return fmt.Errorf("status %d: %s", status, body)
		}
		seen.Count(load.Untold, answer.Responses[0].Status == "UNDER_LIMIT")
	}
	return nil
}
