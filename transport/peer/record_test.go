package peer

import (
	"reflect"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// TestReservationRecords: all that a node needs of a reservation arrives, also where that has no
// limits that say so.
func TestReservationRecords(t *testing.T) {
	for _, want := range []check.Record{
		{Request: bucket.Request{Verb: bucket.Reserve, Cost: 9, Once: 7, Reservation: &bucket.Reservation{ID: 1, Least: 3, MaxOpen: 5, For: time.Minute, Release: true, Fresh: true}}},
		{Request: bucket.Request{Verb: bucket.Reserve, Cost: 9, Reservation: &bucket.Reservation{ID: 1, Least: 3, Lease: true, Hold: true}}},
		{Request: bucket.Request{Verb: bucket.Extend, Cost: -9, Once: 7, Reservation: &bucket.Reservation{ID: 1, Most: 3, For: time.Second, Home: bucket.HomeAuto}}},
		{Request: bucket.Request{Verb: bucket.Spend, Cost: 9, Once: 7, Reservation: &bucket.Reservation{ID: 1, Home: bucket.HomeAuto}}},
		{Request: bucket.Request{Verb: bucket.Settle, Cost: 9, Reservation: &bucket.Reservation{ID: 1, Home: bucket.HomeAuto, Fresh: true}}},
		{Request: bucket.Request{Verb: bucket.Cancel, Once: 7, Reservation: &bucket.Reservation{ID: 1, For: time.Second}}},
	} {
		m := new(peerv1.Request)
		addRecord(m, &want, 0)
		trimRequest(m)
		got, err := readRequest(m, new(definitions), nil)
		if err != nil {
			t.Fatal(err)
		}
		x, y := *got[0].Reservation, *want.Reservation
		if want.Verb == bucket.Extend { // one column is for either
			y.Least = y.Most
		} else {
			y.Most = y.Least
		}
		if !reflect.DeepEqual(x, y) || got[0].Verb != want.Verb || got[0].Cost != want.Cost || got[0].Once != want.Once {
			t.Errorf("%+v, %+v; want %+v, %+v", got[0], x, want, y)
		}
	}
}
