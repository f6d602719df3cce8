package main

import (
	"context"

	"github.com/sluice-project/sluice/bench/load"
)

// tls compares single checks with the echo where both speak TLS. What they cost beside those without says what TLS does.
func (t *target) tls(ctx context.Context) error {
	var l started
	defer func() { l.stop() }()
	echo, err := t.bin.EchoTLS(ctx)
	if err != nil {
		return err
	}
	l = append(l, echo)
	sluice, err := t.bin.SluiceTLS(ctx, usual)
	if err != nil {
		return err
	}
	l = append(l, sluice)
	if err := t.fill(ctx, sluice, "allowed", usual, 100); err != nil {
		return err
	}
	work := shape(1, 64, 1)
	work.Note = "over TLS"
	cell, err := t.compare(ctx, work, unary(echo, load.Uniform{N: usual}), unary(sluice, load.Uniform{N: usual}))
	if err != nil {
		return err
	}
	t.versusEcho(cell, "1 node, TLS, checks a call: 1, 64 callers, ÷ the echo with TLS", 0.90)
	return nil
}
