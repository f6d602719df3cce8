package grpcapi

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// FuzzSessionRequest holds sessionRequest to the generated type.
func FuzzSessionRequest(f *testing.F) {
	check := &sluicev1.Check{Domain: "jobs", Descriptor_: []*sluicev1.Entry{{Key: "queue", Value: "ä"}, {}}}
	two := int64(2)
	whole, err := proto.Marshal(&sluicev1.SessionRequest{
		Acquire: []*sluicev1.SlotRequest{
			{Number: 7, Check: check, Units: 3, Wait: true, Tenant: strings.Repeat("t", 200), Weight: 9, WaitedNs: 1e9, Also: []*sluicev1.Check{check, {Domain: "x"}}},
			{Number: 1 << 63, Check: &sluicev1.Check{Domain: "d", Cost: &two}, Units: -1},
			{Also: []*sluicev1.Check{{Verb: sluicev1.Verb_VERB_READ}, {Limits: []*sluicev1.Limit{{Count: 1}}}}},
		},
		Release: []uint64{1, 300, 1 << 63}, Resume: []*sluicev1.HeldSlot{{Number: 4, Reservation: "é"}, {}}, Heartbeat: 17,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add([]byte{0x10, 0x05, 0x10, 0x06, 0x20, 0x01})             // releases that are not packed
	f.Add([]byte{0x0a, 0x04, 0x2a, 0x02, 0xff, 0xfe})             // invalid UTF-8
	f.Add([]byte{0x12, 0x02, 0x01, 0xff})                         // a number that ends too early
	f.Add([]byte{0x0a, 0x06, 0x12, 0x04, 0x12, 0x02, 0x0a, 0xff}) // the same in a descriptor
	f.Fuzz(func(t *testing.T, data []byte) {
		var m sluicev1.SessionRequest
		wantErr := proto.Unmarshal(data, &m)
		var r sessionRequest
		err := r.DecodeWire(data)
		defer r.drop()
		for i := range r.acquire {
			if first := r.acquire[i].batch.Checks[0].Err; first != nil && first.Message == "twice; want it once" || len(r.acquire[i].batch.Checks) > limiter.MaxBudgets {
				return // what is rejected is not read to the end
			}
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("decode: %v, proto.Unmarshal: %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if !slices.Equal(r.release, m.GetRelease()) || r.heartbeat != m.GetHeartbeat() || len(r.acquire) != len(m.GetAcquire()) || len(r.resume) != len(m.GetResume()) {
			t.Fatalf("%+v\nwant %v", r, &m)
		}
		for i, h := range m.GetResume() {
			if r.resume[i] != (heldRequest{h.GetNumber(), h.GetReservation()}) {
				t.Errorf("resume[%d]: %+v, want %v", i, r.resume[i], h)
			}
		}
		for i, w := range m.GetAcquire() {
			tenant := w.GetTenant()
			a := &r.acquire[i]
			want := limiter.SlotRequest{Units: w.GetUnits(), Wait: w.GetWait(), Tenant: tenant[:min(len(tenant), limiter.MaxTenant+1)], Weight: w.GetWeight()}
			if a.SlotRequest != want || a.number != w.GetNumber() || a.waited != time.Duration(w.GetWaitedNs()) || len(a.batch.Checks) != 1+len(w.GetAlso()) {
				t.Fatalf("acquire[%d]: %+v\nwant %v", i, a, w)
			}
			for j, c := range append([]*sluicev1.Check{w.GetCheck()}, w.GetAlso()...) {
				got := &a.batch.Checks[j]
				more := c.GetVerb() != sluicev1.Verb_VERB_CHECK || len(c.GetLimits()) > 0 || c != nil && c.Cost != nil && c.GetCost() != 1
				d := appendEntries(nil, c.GetDescriptor_())
				if got.Domain != c.GetDomain() || len(d)+len(got.Descriptor) > 0 && len(d) <= limiter.MaxEntries && !reflect.DeepEqual(got.Descriptor, d) || more != (got.Err != nil) {
					t.Errorf("acquire[%d], check %d: %+v\nwant %v", i, j, got, c)
				}
			}
		}
	})
}

// A message cannot ask for more slots than a session may have.
func TestSessionRequestTooLarge(t *testing.T) {
	data, r := []byte(strings.Repeat("\x0a\x00", maxSlots)), new(sessionRequest)
	for _, c := range []struct {
		data []byte
		want *limiter.Error
	}{{data, nil}, {append(data, 0x0a, 0), errManyRequests}, {data, nil}} {
		if err := r.DecodeWire(c.data); err != nil || r.fault != c.want {
			t.Errorf("%v, %v; want %v", err, r.fault, c.want)
		}
	}
}

func TestSessionResponse(t *testing.T) {
	result := func() (b *limiter.Batch) {
		b = limiter.NewBatch()
		b.Results = []limiter.Result{{}, {Source: check.Forwarded, Owner: "n2"}}
		b.Results[0].Allowed, b.Results[0].Remaining = true, 5
		b.Results[1].RetryAfter = time.Second
		return b
	}
	room := limiter.MaxResponses
	b := result()
	want := &sluicev1.SessionResponse{
		Heartbeat: 5, ExpiresAfterNs: int64(limiter.SlotTTL), NotRenewed: []uint64{3, 1 << 40},
		Slots: []*sluicev1.SlotResponse{
			{Number: 1, Decision: decisionToProto(&b.Results[0], 0, &room), Reservation: strings.Repeat("i", 200), Fence: 1 << 62, ExpiresAfterNs: 1e9, Heartbeat: 4},
			{Number: 2, Decision: decisionToProto(&b.Results[1], 1, &room)},
			{Number: 3, Moved: true, Owner: "n3", Waited: true},
			{Number: 4, Error: callError(limiter.ErrBusy)},
		},
	}
	for _, slots := range []int{0, 4} {
		r := sessionResponse{heartbeat: 5, notRenewed: want.NotRenewed, slots: []slotResponse{
			{number: 1, heartbeat: 4, expires: time.Second, batch: result(), SlotAnswer: limiter.SlotAnswer{ID: strings.Repeat("i", 200), Fence: 1 << 62}},
			{number: 2, batch: result(), SlotAnswer: limiter.SlotAnswer{Check: 1}},
			{number: 3, SlotAnswer: limiter.SlotAnswer{Moved: true, Owner: "n3", Waited: true}},
			{number: 4, SlotAnswer: limiter.SlotAnswer{Err: limiter.ErrBusy}},
		}[:slots]}
		w := proto.Clone(want).(*sluicev1.SessionResponse)
		w.Slots = w.Slots[:slots]
		if slots == 0 {
			r.heartbeat, w.Heartbeat, w.ExpiresAfterNs = 0, 0, 0
		}
		var got sluicev1.SessionResponse
		out := r.EncodeWire()
		err := proto.Unmarshal(out.Materialize(), &got)
		out.Free()
		if err != nil || !proto.Equal(&got, w) {
			t.Errorf("%v %v\nwant %v", err, &got, w)
		}
	}
}
