package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func newConsole() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print an address that logs a browser in to the console",
		Long: `Print an address of a node's console that logs a browser in, once and within a minute. The
session may do what operators may, for twelve hours, or until the node stops.

The node must run on this machine, as this user, and the browser must reach its HTTP port by
this address: for a node elsewhere, forward the port with ssh -L or kubectl port-forward.
With --callers, the console takes tokens too.

Exit codes: 0 printed, 1 refused, 2 wrong usage, 3 no answer.`,
		Example: "  sluice console\n" +
			"  kubectl exec sluice-0 -- /sluice console",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settle(cmd.Flags(), lookupEnv); err != nil {
				return usageError(err)
			}
			return f.console(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.registerNode(cmd)
	f.registerPlace(cmd)
	return cmd
}

// console prints a login address.
func (f *clientFlags) console(ctx context.Context, out io.Writer) error {
	way, ok := f.way()
	if !ok {
		return &codedError{exitNoAnswer, errors.New("no way to the node as its operator" + f.noWay())}
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	noAnswer := func(err error) error { return &codedError{exitNoAnswer, fmt.Errorf("%s: %w", way, err)} }
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return way.Dial(ctx) }}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/console/code", strings.NewReader("{}"))
	if err != nil {
		return noAnswer(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if way.Token != "" {
		req.Header.Set("Authorization", "Bearer "+way.Token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return noAnswer(err)
	}
	defer resp.Body.Close()
	var answer struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&answer)
	switch {
	case err != nil:
		return noAnswer(fmt.Errorf("%s: %w", resp.Status, err))
	case resp.StatusCode == http.StatusNotFound:
		return &codedError{exitDenied, errors.New("this node has no console; start it without --console=false")}
	case resp.StatusCode != http.StatusOK:
		return &codedError{exitDenied, errors.New(answer.Detail)}
	}
	_, err = fmt.Fprintln(out, answer.URL)
	return err
}
