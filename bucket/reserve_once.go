package bucket

import "time"

const (
	// changesKept is how many of a reservation's latest Spends and Extends with a Once are remembered,
	// for OnceFor or until it ends: more than come between two tries of one. The memory of a
	// reservation is thus bounded, however often its units are spent.
	changesKept = 16
	// cancelFor is how long a Cancel keeps a Reserve of its attempt from getting anything: none is
	// under way for longer.
	cancelFor = 10 * time.Second
)

// changeKey returns the key of one of the records of the changes of reservation id of k: record 0
// has their number, and the others, 1 to changesKept, the Once of one each. They are outcomes of
// IDs that nothing else has, so they travel with their reservation wherever outcomes do.
func (k Key) changeKey(id uint64, i int64) Key { return k.grantKey(id*idMix + uint64(i)) }

// noteLocked reads a record of the changes of r's reservation.
func (sh *shard) noteLocked(at int64, r *Request, i int64) (value int64, ok bool) {
	slot, ok := sh.mu.store.find(r.Key.changeKey(r.Reservation.ID, i))
	if !ok || sh.mu.store.at(slot).now <= at {
		return 0, false
	}
	return sh.mu.store.at(slot).spent, true
}

// doneLocked reports whether r, a change of an open reservation, is remembered.
func (sh *shard) doneLocked(at int64, r *Request) bool {
	changes, _ := sh.noteLocked(at, r, 0)
	for i := range min(changes, changesKept) {
		if once, ok := sh.noteLocked(at, r, i+1); ok && once == int64(r.Once>>1) {
			return true
		}
	}
	return false
}

// rememberLocked remembers r, a change of an open reservation under the limits l.
func (sh *shard) rememberLocked(now int64, r *Request, l *Limits) (grown bool) {
	at := sh.atLocked(now)
	changes, _ := sh.noteLocked(at, r, 0)
	put := func(i, value int64) {
		key := r.Key.changeKey(r.Reservation.ID, i)
		o := sh.putOutcomeLocked(now, key, &counter{
			limits: l, now: addSat(at, int64(OnceFor)), first: state{spent: value, aux: int64(r.Key.Hi), last: never},
		}, r.Unreplicated)
		grown = grown || o.grown > 0
	}
	put(1+changes%changesKept, int64(r.Once>>1))
	put(0, changes+1)
	return grown
}

// putOutcomeLocked makes g the outcome that key has, of a reservation that has charged nothing.
func (sh *shard) putOutcomeLocked(now int64, key Key, g *counter, unreplicated bool) outcome {
	g.admissions |= attributes(ForReservation, released, false)
	o := sh.putGrantLocked(sh.atLocked(now), key, g)
	o.did |= changed
	sh.followLocked(now, key, o, unreplicated)
	return o
}

// forgetChangesLocked forgets the changes of a reservation of key that ends.
func (sh *shard) forgetChangesLocked(at int64, key Key, id uint64) {
	for i := range int64(1 + changesKept) {
		slot, ok := sh.mu.store.find(key.changeKey(id, i))
		if ok {
			sh.forgetGrantLocked(at, slot)
		} else if i == 0 {
			return
		}
	}
}
