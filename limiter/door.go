package limiter

import "github.com/sluice-project/sluice/internal/timing"

// Door is the way that a call came in by.
type Door uint8

// The doors. OtherDoor is any that does not say which it is.
const (
	OtherDoor Door = iota
	// GRPCDoor is sluice.v1, StreamDoor its CheckStream, where every request is a call.
	GRPCDoor
	StreamDoor
	HTTPDoor
	EnvoyDoor
	GubernatorDoor
	ForwardAuthDoor

	// Doors is how many there are.
	Doors = int(ForwardAuthDoor) + 1
)

var doorNames = [Doors]string{"other", "grpc", "stream", "http", "envoy", "gubernator", "forward-auth"}

// String returns the door's name in metrics and traces.
func (d Door) String() string {
	if int(d) >= Doors {
		d = OtherDoor
	}
	return doorNames[d]
}

// DoorLatency is how long calls of Check through one door took to decide.
type DoorLatency struct {
	Door Door
	timing.Snapshot
}

// doorOf returns what counts the calls of the door that b came in by.
func (s *Limiter) doorOf(b *Batch) *timing.Histogram {
	if int(b.Door) >= Doors {
		return &s.latency[OtherDoor]
	}
	return &s.latency[b.Door]
}

// doorLatencies returns the histograms of all doors, and their sum.
func (s *Limiter) doorLatencies() (list []DoorLatency, all timing.Snapshot) {
	for i := range s.latency {
		one := DoorLatency{Door(i), s.latency[i].Snapshot()}
		list = append(list, one)
		all.Add(one.Snapshot)
	}
	return list, all
}
