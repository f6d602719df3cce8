package system

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// SameSize fails when the echo's answer to a hundred checks differs from sluice's by more than
// a twentieth in length, because then the echo is no measure of sluice's transport.
func SameSize(ctx context.Context, echo, sluice *System) error {
	var size [2]int
	for i, s := range []*System{echo, sluice} {
		req := &sluicev1.CheckRequest{}
		for range 100 {
			req.Checks = append(req.Checks, &sluicev1.Check{Domain: "allowed", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: "size"}}})
		}
		res, err := sluicev1.NewSluiceServiceClient(s.conns[0]).Check(ctx, req)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		size[i] = proto.Size(res)
	}
	if d := size[0] - size[1]; d*20 > size[1] || -d*20 > size[1] {
		return fmt.Errorf("the echo answers %d bytes where %s answers %d: bring echo/main.go up to date", size[0], sluice.Name, size[1])
	}
	return nil
}
