package sim

// event is something that happens at a time. Exactly one of do and the delivery is set.
type event struct {
	at  int64
	seq uint64 // of those at the same time, the first one queued comes first
	do  func()
	// transfer batch is a message to the process called to (a place in world.names).
	transferBatch *letter
}

// queue is the events to come, a binary heap.
type queue struct {
	events []event
	seq    uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.events = append(q.events, e)
	h, i := q.events, len(q.events)-1
	for i > 0 {
		up := (i - 1) / 2
		if !before(&h[i], &h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() (event, bool) {
	h := q.events
	if len(h) == 0 {
		return event{}, false
	}
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	q.events = h
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < last && before(&h[down], &h[least]) {
				least = down
			}
		}
		if least == i {
			return first, true
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }
