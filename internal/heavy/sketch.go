package heavy

import "github.com/sluice-project/sluice/bucket"

// Sketch counts the heaviest keys of a stream in a fixed number of places: Space-Saving (Metwally,
// Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005). A
// key that finds no place takes that of the lightest, and inherits its count as an error. So of a stream of
// total weight W, in m places:
//
//   - a key with a place has come at most its count, and at least its count less its error,
//   - no error is more than W ÷ m, and every key that weighs more than that has a place.
//
// It is not safe for concurrent use. Once its places are filled, it allocates only for longer names.
type Sketch struct {
	size   int
	places []place // a heap, the lightest first
	index  map[bucket.Key]int32
}

type place struct {
	key         bucket.Key
	count, over uint64
	name        []byte
}

// Namer appends the name of a key. It is asked for it only when the key gets a place.
type Namer interface{ AppendName(dst []byte) []byte }

// NewSketch returns an empty sketch of size places, at least 1.
func NewSketch(size int) *Sketch {
	return &Sketch{size: max(1, size), index: make(map[bucket.Key]int32, size)}
}

// Add counts weight for key, which n names.
func (s *Sketch) Add(key bucket.Key, weight uint64, n Namer) {
	if i, ok := s.index[key]; ok {
		s.places[i].count += weight
		s.down(int(i))
		return
	}
	if len(s.places) < s.size {
		s.insert(key, weight, n)
		return
	}
	p := &s.places[0]
	delete(s.index, p.key)
	p.key, p.over = key, p.count
	p.count += weight
	p.name = n.AppendName(p.name[:0])
	s.index[key] = 0
	s.down(0)
}

// insert gives key a place that is free.
func (s *Sketch) insert(key bucket.Key, weight uint64, n Namer) {
	last := len(s.places)
	if last < cap(s.places) {
		s.places = s.places[:last+1] // with the memory of an earlier name
	} else {
		s.places = append(s.places, place{})
	}
	p := &s.places[last]
	*p = place{key: key, count: weight, name: n.AppendName(p.name[:0])}
	s.index[key] = int32(last)
	s.up(last)
}

// floor returns the most that a key without a place can have come.
func (s *Sketch) floor() uint64 {
	if len(s.places) < s.size {
		return 0
	}
	return s.places[0].count
}

// clear empties s and keeps its memory.
func (s *Sketch) clear() {
	s.places = s.places[:0]
	clear(s.index)
}

func (s *Sketch) swap(i, j int) {
	s.places[i], s.places[j] = s.places[j], s.places[i]
	s.index[s.places[i].key], s.index[s.places[j].key] = int32(i), int32(j)
}

func (s *Sketch) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.places[parent].count <= s.places[i].count {
			return
		}
		s.swap(i, parent)
		i = parent
	}
}

func (s *Sketch) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(s.places) && s.places[child].count < s.places[least].count {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}
