package node

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/inflow"
	"github.com/sluice-project/sluice/limiter"
)

// families are the metrics of a node, in the order of the questions that they
// answer: is it serving, what does it decide, who decides, what waits, what is
// held, who is there, who counts and holds what. Labels are bounded: by results, error codes and rules.
var families = []family{
	gauges("sluice_build_info", "Always 1; the label says which version runs.", []string{"version"}, func(s *snapshot) []sample {
		return []sample{{labels: []string{s.version}, value: 1}}
	}),
	gauge("sluice_ready", "1 when this node takes traffic.",
		func(s *snapshot) float64 { return flag(s.ready) }),
	gauge("sluice_rules_generation", "Sets of rules that came into force since the start; 0 without --rules.",
		func(s *snapshot) float64 { return float64(s.rules.Generation) }),
	gauge("sluice_rules_stale", "1 while the rule files have a fault and older rules are in force.",
		func(s *snapshot) float64 { return flag(s.rules.LastError != nil) }),
	gauge("sluice_rules", "Rules in force.",
		func(s *snapshot) float64 { return float64(len(s.service.Rules)) }),
	gauge("sluice_rules_loaded_timestamp_seconds", "When the rules in force were read, in Unix time; 0 without --rules.",
		func(s *snapshot) float64 {
			if s.rules.LoadedAt.IsZero() {
				return 0
			}
			return float64(s.rules.LoadedAt.UnixMilli()) / 1e3
		}),
	counter("sluice_rules_failures_total", "Different faults found in rule files.",
		func(s *snapshot) uint64 { return s.rules.Failures }),

	gauge("sluice_rules_skipped_files", "Files beside the rules that are not read: their names are not those of rule files; 101 for more than 100.",
		func(s *snapshot) float64 { return float64(len(s.rules.Skipped)) }),

	gauges("sluice_secrets_stale", "1 while files with certificates, keys or callers have a fault and older ones are in force.", []string{"files"},
		func(s *snapshot) (list []sample) {
			for _, f := range s.secrets {
				list = append(list, sample{labels: []string{f.label}, value: flag(f.status.LastError != nil)})
			}
			return list
		}),
	gauges("sluice_certificate_expiry_timestamp_seconds", "When the certificate in force ends, in Unix time.", []string{"files"},
		func(s *snapshot) (list []sample) {
			for _, f := range s.secrets {
				if !f.expires.IsZero() {
					list = append(list, sample{labels: []string{f.label}, value: float64(f.expires.Unix())})
				}
			}
			return list
		}),
	gauges("sluice_certificate_life_left_ratio", "How much of the life of the certificate in force is left, 1 to 0.", []string{"files"},
		func(s *snapshot) (list []sample) {
			for _, f := range s.secrets {
				if !f.expires.IsZero() {
					list = append(list, sample{labels: []string{f.label}, value: f.left})
				}
			}
			return list
		}),
	counters("sluice_tls_handshakes_failed_total", "Connections that ended in the TLS handshake: no certificate or a wrong one, or no TLS.", []string{"port"},
		func(s *snapshot) []sample {
			return by("grpc", s.failedGRPC, "http", s.failedHTTP, "peer", s.failedPeer)
		}),
	counters("sluice_secrets_failures_total", "Different faults found in files with certificates, keys or callers.", []string{"files"},
		func(s *snapshot) (list []sample) {
			for _, f := range s.secrets {
				list = append(list, sample{labels: []string{f.label}, value: float64(f.status.Failures)})
			}
			return list
		}),

	counters("sluice_callers_refused_total", "Calls, and checks among others of a call, that their caller may not make, by door and reason.", []string{"door", "reason"},
		func(s *snapshot) (list []sample) {
			for _, r := range s.refused {
				list = append(list, sample{labels: []string{r.Door, r.Reason}, value: float64(r.Count)})
			}
			return list
		}),

	counter("sluice_calls_total", "Calls of Check and Reset through any door.",
		func(s *snapshot) uint64 { return s.service.Calls }),
	durations("sluice_check_duration_seconds", "Time to decide a call, forwarding included, by the door that it came in by.",
		[]string{"door"}, func(s *snapshot) (list []sample) {
			for _, d := range s.service.Doors {
				list = append(list, sample{labels: []string{d.Door.String()}, times: d.Snapshot})
			}
			return list
		}),
	counters("sluice_checks_total", "Checks by result.", []string{"result"}, func(s *snapshot) []sample {
		return by("allowed", s.service.Allowed, "denied", s.service.Denied, "shadowed", s.service.Shadowed)
	}),
	counters("sluice_check_errors_total", "Checks without a decision, by reason.", []string{"code"}, errorSamples),
	counters("sluice_unmatched_checks_total", "Checks that no rule matches: nothing limits them. All domains without rules are "+limiter.UnknownDomains+".",
		[]string{"domain"}, func(s *snapshot) (list []sample) {
			for _, domain := range slices.Sorted(maps.Keys(s.service.Unmatched)) {
				list = append(list, sample{labels: []string{domain}, value: float64(s.service.Unmatched[domain])})
			}
			return list
		}),
	counters("sluice_rule_checks_total", "Checks by rule and result.", []string{"domain", "rule", "result"},
		func(s *snapshot) []sample { return ruleSamples(s.service.Rules) }),
	counters("sluice_descriptor_checks_total", "Checks of rules with detailed_metric or value_to_metric by the values that came, and result. Those that came first since the rules changed have a name; the rest of a domain is other.",
		[]string{"domain", "descriptor", "result"}, func(s *snapshot) []sample { return ruleSamples(s.service.Descriptors) }),

	counters("sluice_pool_checks_total", "Checks beyond a rule's limits, by its pool and what that answered.",
		[]string{"domain", "pool", "result"}, func(s *snapshot) (list []sample) {
			for _, p := range s.service.Pools {
				list = append(list, sample{labels: []string{p.Domain, p.Name, "elastic"}, value: float64(p.Admitted)},
					sample{labels: []string{p.Domain, p.Name, "denied"}, value: float64(p.Denied)})
			}
			return list
		}),
	gauges("sluice_pool_load", "The load that counts for a pool on this node, 0 to 1.", []string{"domain", "pool"}, func(s *snapshot) (list []sample) {
		for _, p := range s.service.Pools {
			list = append(list, sample{labels: []string{p.Domain, p.Name}, value: p.Load})
		}
		return list
	}),
	gauges("sluice_pool_reporters", "Reporters whose load counts for a pool on this node.", []string{"domain", "pool"}, func(s *snapshot) (list []sample) {
		for _, p := range s.service.Pools {
			list = append(list, sample{labels: []string{p.Domain, p.Name}, value: float64(p.Reporters)})
		}
		return list
	}),

	counters("sluice_answers_total", "Checks of this node's doors by who answered: the node itself, another that "+
		"holds the key, this node by what that one had denied just before or has lent it, or a rule's on_failure because no holder was reached in time.", []string{"source"},
		func(s *snapshot) []sample {
			c := s.cluster
			return by("held", c.Held, "forwarded", c.Forwarded, "remembered", c.Remembered, "lease", c.Leased, "eventual", c.Eventual.Decided, "share", c.Share, "closed", c.Closed, "open", c.Open,
				"unanswered", c.Unanswered, "overloaded", c.Overloaded)
		}),
	counters("sluice_partition_answers_total", "Checks of this node's doors that a rule's on_partition answered, because "+
		"this node is cut off from the majority.", []string{"answer"}, func(s *snapshot) []sample {
		c := s.cluster
		return by("share", c.MinorityShare, "closed", c.MinorityClosed, "open", c.MinorityOpen)
	}),
	counter("sluice_shares_charged_total", "Cost admitted as shares and charged to the keys' holders later.",
		func(s *snapshot) uint64 { return s.cluster.Settled }),
	gauge("sluice_shares_owed", "Keys of which a share is still to be charged to the holder.",
		func(s *snapshot) float64 { return float64(s.cluster.Owed) }),
	counter("sluice_shares_forgotten_total", "Keys of which that was given up, because there were too many.",
		func(s *snapshot) uint64 { return s.cluster.OwedForgotten }),
	counter("sluice_shares_unknown_total", "Shares given of keys of which this node remembers no answer of the owner: a part of the limit, or nothing, by unknown_share.",
		func(s *snapshot) uint64 { return s.cluster.SharesUnknown }),
	counter("sluice_forwards_total", "Checks sent to other nodes, retries included.",
		func(s *snapshot) uint64 { return s.cluster.Forwards }),
	counter("sluice_forwards_relayed_total", "Records that this node has asked their owners for, for nodes that do not hear these.",
		func(s *snapshot) uint64 { return s.cluster.Relayed }),
	counter("sluice_forwards_combined_total", "Checks sent to other nodes in the record of an equal one.",
		func(s *snapshot) uint64 { return s.pool.Merged }),
	counter("sluice_lease_granted_units_total", "Units of hot keys that this node has lent as their holder, to itself included.",
		func(s *snapshot) uint64 { return s.cluster.Lent }),
	gauge("sluice_lease_lending_keys", "Keys held here of which somebody borrows.",
		func(s *snapshot) float64 { return float64(s.cluster.Lending) }),
	counter("sluice_lease_borrowed_units_total", "Units that this node has borrowed. They were spent, returned, or have expired, or are live.",
		func(s *snapshot) uint64 { return s.cluster.Leases.Granted }),
	counter("sluice_lease_spent_units_total", "Units that checks have spent of leases.",
		func(s *snapshot) uint64 { return s.cluster.Leases.Spent }),
	counter("sluice_lease_returned_units_total", "Units that this node has returned, because nobody was going to spend them.",
		func(s *snapshot) uint64 { return s.cluster.Leases.Returned }),
	counter("sluice_lease_expired_units_total", "Units that nobody has spent until the lease was over.",
		func(s *snapshot) uint64 { return s.cluster.Leases.Expired }),
	gauge("sluice_lease_live_units", "Units that this node may spend.",
		func(s *snapshot) float64 { return float64(s.cluster.Leases.Live) }),
	gauge("sluice_lease_keys", "Keys that are hot here.",
		func(s *snapshot) float64 { return float64(s.cluster.Leases.Keys) }),
	counter("sluice_lease_denied_total", "Checks that found a lease used up, and its holder without more just before.",
		func(s *snapshot) uint64 { return s.cluster.Leases.Denied }),
	gauge("sluice_eventual_keys", "Keys that this node decides by itself, under consistency: eventual.",
		func(s *snapshot) float64 { return float64(s.cluster.Eventual.Keys) }),
	gauge("sluice_eventual_reported_keys", "Keys held here of which nodes report what they have admitted by themselves.",
		func(s *snapshot) float64 { return float64(s.cluster.Eventual.Reported) }),
	gauge("sluice_eventual_lag_seconds", "For how long the oldest report has been without an answer.",
		func(s *snapshot) float64 { return s.cluster.Eventual.Lag.Seconds() }),
	counter("sluice_eventual_sent_total", "Sums of one key each reported to other nodes.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Sent }),
	counter("sluice_eventual_received_total", "Sums of one key each reported by other nodes.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Received }),
	counter("sluice_eventual_dropped_total", "Reports and answers that met a full queue; the next ones make up for them.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Dropped }),
	counter("sluice_eventual_charged_units_total", "What nodes have admitted by themselves of keys held here, as they have reported it.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Charged }),
	counter("sluice_eventual_excess_units_total", "How much of that went beyond the keys' limits.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Over }),
	counter("sluice_eventual_overflow_total", "Checks that were left to the holder, because this node decides too many other keys.",
		func(s *snapshot) uint64 { return s.cluster.Eventual.Full }),
	durations("sluice_forward_duration_seconds", "Time that another node took to answer a call of this one, of one or many records.",
		nil, func(s *snapshot) []sample { return []sample{{times: s.cluster.Forwarding}} }),
	counter("sluice_forward_retries_total", "Attempts to find a holder that began after a wait.",
		func(s *snapshot) uint64 { return s.cluster.Retries }),
	counter("sluice_forward_redirects_total", "Answers of other nodes that they do not hold the key.",
		func(s *snapshot) uint64 { return s.cluster.Redirected }),
	counter("sluice_forward_laters_total", "Answers of holders that they cannot decide just now, in a hand-off for example.",
		func(s *snapshot) uint64 { return s.cluster.Later }),
	counter("sluice_forward_ambiguous_total", "Checks sent without an answer; a retry of theirs may be charged twice.",
		func(s *snapshot) uint64 { return s.cluster.Ambiguous }),
	counter("sluice_served_total", "Checks of other nodes decided here.",
		func(s *snapshot) uint64 { return s.cluster.Served }),
	counter("sluice_served_not_holder_total", "Checks of other nodes for keys that are not held here.",
		func(s *snapshot) uint64 { return s.cluster.NotHolder }),
	counter("sluice_served_later_total", "Checks of other nodes that could not be decided here just then.",
		func(s *snapshot) uint64 { return s.cluster.ToldLater }),
	counter("sluice_give_backs_total", "Charges of failed all-or-nothing calls that were given back.",
		func(s *snapshot) uint64 { return s.cluster.GaveBack }),
	counter("sluice_give_backs_lost_total", "Such charges that could not be given back and stand.",
		func(s *snapshot) uint64 { return s.cluster.GiveBacksLost + s.cluster.HeldDropped }),

	gauge("sluice_peer_connections", "Peers connected to.",
		func(s *snapshot) float64 { return float64(s.pool.Peers) }),
	gauge("sluice_peer_queue_records", "Checks that wait to be sent to peers.",
		func(s *snapshot) float64 { return float64(s.pool.Waiting) }),
	counter("sluice_peer_frames_total", "Frames sent to peers.",
		func(s *snapshot) uint64 { return s.pool.Frames }),
	counter("sluice_peer_records_total", "Checks in those frames.",
		func(s *snapshot) uint64 { return s.pool.Records }),
	counter("sluice_peer_overloaded_total", "Calls refused because a peer's queue was full.",
		func(s *snapshot) uint64 { return s.pool.Overloaded }),
	counter("sluice_peer_dial_failures_total", "Attempts to connect to a peer that failed.",
		func(s *snapshot) uint64 { return s.pool.Failed }),
	counter("sluice_peer_broken_total", "Connections to peers that were lost.",
		func(s *snapshot) uint64 { return s.pool.Broken }),
	counter("sluice_peer_refused_total", "Incoming peer streams with another protocol, placement or secret.",
		func(s *snapshot) uint64 { return s.server.Refused }),
	counter("sluice_peer_malformed_total", "Incoming peer streams ended because of a frame that was not understood.",
		func(s *snapshot) uint64 { return s.server.Malformed }),

	gauges("sluice_connections", "Connections to this node's ports now, by port.", []string{"port"},
		func(s *snapshot) []sample { return s.ports.open() }),
	counters("sluice_connections_refused_total", "Connections closed: too many (full), too many of one address (address), "+
		"nothing said within 5 s (silent); or not accepted yet, most often because no file descriptor is left (error).", []string{"port", "reason"},
		func(s *snapshot) []sample { return s.ports.refused() }),

	gauges("sluice_unfinished_bytes", "Bytes of messages that are not complete, by port; on the peer port of streams that have not said hello.", []string{"port"},
		func(s *snapshot) []sample {
			return []sample{{labels: []string{"grpc"}, value: float64(s.unread.Held)}, {labels: []string{"peer"}, value: float64(s.server.Unread.Held)}}
		}),
	counters("sluice_unfinished_calls_ended_total", "Calls ended because their message was not complete: after 10 s (deadline), too long for an unauthenticated "+
		"client (unknown), too much held of one connection (connection) or of all (process). For stray a connection was closed, which went on sending to calls that had ended.", []string{"port", "reason"},
		func(s *snapshot) (list []sample) {
			for _, port := range []struct {
				name string
				inflow.Stats
			}{{"grpc", s.unread}, {"peer", s.server.Unread}} {
				for reason, n := range port.Ended.All() {
					list = append(list, sample{labels: []string{port.name, reason}, value: float64(n)})
				}
			}
			return list
		}),

	gauge("sluice_calls_in_progress", "Calls with checks that are being decided.",
		func(s *snapshot) float64 { return float64(s.load.Calls) }),
	gauge("sluice_wait_seconds", "What nine in ten goroutines did not wait longer for a processor than, of late.",
		func(s *snapshot) float64 { return s.load.Wait.Seconds() }),
	gauge("sluice_waiting_goroutines", "Goroutines that wait for a processor now.",
		func(s *snapshot) float64 { return float64(s.load.Waiting) }),
	gauge("sluice_refusing", "The part of calls with checks that is refused now because work waits too long, 0 to 1.",
		func(s *snapshot) float64 { return s.load.Refusing }),
	counters("sluice_calls_refused_total", "Calls with checks that were refused: too many in progress (full), or work waited too long (slow).",
		[]string{"reason"}, func(s *snapshot) []sample { return by("full", s.load.Full, "slow", s.load.Slow) }),
	gauge("sluice_console_watchers", "Pages and others that watch the cluster through this node now.",
		func(s *snapshot) float64 { return float64(s.watchers) }),

	gauge("sluice_counters", "Counters held.",
		func(s *snapshot) float64 { return float64(s.table.Entries) }),
	gauge("sluice_counter_bytes", "Approximate memory of the counters held and of their limits.",
		func(s *snapshot) float64 { return float64(s.table.Bytes) }),
	counter("sluice_counters_inserted_total", "Counters made.",
		func(s *snapshot) uint64 { return s.table.Inserted }),
	counter("sluice_counters_expired_total", "Counters removed because they were wholly free again.",
		func(s *snapshot) uint64 { return s.table.Expired + s.table.EvictedExpired }),
	counter("sluice_counters_evicted_live_total", "Counters evicted although they still counted: "+
		"each gave its key a fresh quota. Raise --memory-limit when this grows.",
		func(s *snapshot) uint64 { return s.table.EvictedLive }),
	counters("sluice_evicted_live_total", "The same by domain: those that rules name, up to 256 others that have counters, and (other) for the rest.",
		[]string{"domain"}, func(s *snapshot) []sample {
			return byDomain(s, func(d *bucket.DomainStats) float64 { return float64(d.EvictedLive) })
		}),
	gauges("sluice_domain_counters", "Counters held, by domain, as in sluice_evicted_live_total.",
		[]string{"domain"}, func(s *snapshot) []sample {
			return byDomain(s, func(d *bucket.DomainStats) float64 { return float64(d.Entries) })
		}),
	counter("sluice_denied_full_total", "Checks of new keys that were denied because there was no room for a counter: see --when-full and max_keys.",
		func(s *snapshot) uint64 { return s.table.DeniedFull }),
	gauge("sluice_limit_sets", "Sets of limits that counters refer to, of rules and of checks that bring their own; at 65,536 no new ones are taken.",
		func(s *snapshot) float64 { return float64(s.table.Sets) }),

	gauge("sluice_members", "Members in this node's view, itself included.",
		func(s *snapshot) float64 { return float64(s.gossip.Members) }),
	gauge("sluice_members_lost", "Members that vanished without leaving and are still tried.",
		func(s *snapshot) float64 { return float64(s.gossip.Lost) }),
	counter("sluice_members_refused_total", "Gossip from nodes with another placement or format.",
		func(s *snapshot) uint64 { return s.gossip.Refused }),
	counter("sluice_gossip_malformed_total", "Messages on the gossip port that are no gossip, or are encrypted with none of this node's keys.",
		func(s *snapshot) uint64 { return s.gossip.Malformed }),
	counter("sluice_gossip_tcp_only_probes_total", "Probes of other nodes that were answered over TCP and not over UDP.",
		func(s *snapshot) uint64 { return s.gossip.TCPOnly }),
	gauges("sluice_gossip_keys", "Keys that gossip is encrypted with; the label names the one for what is sent.", []string{"primary"},
		func(s *snapshot) []sample {
			if s.gossip.Keys == 0 {
				return nil
			}
			return []sample{{labels: []string{s.gossip.Primary}, value: float64(s.gossip.Keys)}}
		}),
	gauge("sluice_members_unproven", "Processes that were heard of in encrypted gossip and have not answered this node yet.",
		func(s *snapshot) float64 { return float64(s.gossip.Unproven) }),
	counter("sluice_gossip_streams_refused_total", "Streams to the gossip port that were closed: too many, too long, or announcing more than gossip has.",
		func(s *snapshot) uint64 { return s.gossip.RefusedStreams }),
	counter("sluice_joins_total", "Attempts to reach join targets and lost members.",
		func(s *snapshot) uint64 { return s.gossip.Joins }),
	counter("sluice_joins_failed_total", "Those that nobody answered.",
		func(s *snapshot) uint64 { return s.gossip.JoinsFailed }),
	gauge("sluice_gossip_health", "memberlist's score of this node: 0 is well, higher misses answers.",
		func(s *snapshot) float64 { return float64(s.gossip.Health) }),
	counter("sluice_messages_total", "Messages about members, partitions and counters that were sent to other nodes.",
		func(s *snapshot) uint64 { return s.pool.Posted }),
	counter("sluice_messages_dropped_total", "Those that were not, for a full queue or want of a connection, and those of others that met "+
		"a full queue here. What matters is sent again.",
		func(s *snapshot) uint64 { return s.pool.Dropped + s.cluster.Dropped }),

	gauge("sluice_right", "1 while this node may decide: a majority has acknowledged it just now.",
		func(s *snapshot) float64 { return flag(s.cluster.Right) }),
	gauge("sluice_set_members", "Members that majorities are counted in.",
		func(s *snapshot) float64 { return float64(len(s.cluster.Set.Members)) }),
	gauge("sluice_set_version", "Version of the set of these members.",
		func(s *snapshot) float64 { return float64(s.cluster.Set.Version) }),
	gauge("sluice_peers_unheard", "Members that gossip shows and that are not heard over the peer port.",
		func(s *snapshot) float64 { return float64(s.cluster.Unreachable) }),
	counter("sluice_voter_set_write_errors_total", "Writes of the voter set to --data-dir that failed; until one succeeds the node has no quorum.",
		func(s *snapshot) uint64 { return s.cluster.StoresFailed }),
	counter("sluice_sets_dissolved_total", "Sets that this node gave up for one of another cluster that it met.",
		func(s *snapshot) uint64 { return s.cluster.Dissolved }),
	gauge("sluice_partitions", "Partitions that this node holds.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Holding) }),
	gauge("sluice_partitions_closing", "Partitions that are on their way to another holder.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Closing) }),
	gauge("sluice_partitions_claiming", "Partitions without a holder that this node is claiming.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Claiming) }),
	gauge("sluice_partitions_unprotected", "Partitions held here that no other node, of those that are heard, has a complete copy of.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Unprotected) }),
	gauge("sluice_partitions_below_replicas", "Partitions held here of which fewer nodes that are heard have a complete replica than --replicas says, or than there are other nodes that serve.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Below) }),
	gauge("sluice_copies", "Copies here of partitions that other nodes hold.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Copies) }),
	gauge("sluice_forks", "States of partitions lost to another holder that it has not taken in yet.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Forks) }),
	counters("sluice_handoffs_total", "Partitions given to another node, and taken from one.", []string{"direction"},
		func(s *snapshot) []sample {
			return by("given", s.cluster.Partitions.HandedOver, "taken", s.cluster.Partitions.Received)
		}),
	counter("sluice_handoffs_refused_total", "Hand-offs that the other node refused; the partition was taken back.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.TakenBack }),
	counter("sluice_claims_total", "Partitions claimed because they had no living holder.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Claims }),
	counter("sluice_claims_fresh_total", "Those of which nobody had any state, as at the first start: their counters began afresh.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Fresh }),
	counter("sluice_claims_lost_state_total", "Partitions claimed without the state that there was, as far as known: their counters are lost until it comes back.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Losses }),
	gauge("sluice_partitions_lost_state", "Partitions held here whose counters are lost: rules with on_lost_state: deny deny what may have been spent.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions.Lost) }),
	counter("sluice_lost_state_denied_total", "Checks of keys held here that were denied because their counters are lost.",
		func(s *snapshot) uint64 { return s.cluster.DeniedLost }),
	counter("sluice_stepped_down_total", "Partitions that this node lost to a later holder, after a cut or a pause.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.SteppedDown }),
	counter("sluice_merged_total", "States of such partitions that their holders have taken in.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Merged }),
	counter("sluice_freezes_total", "Times that a partition waited for its next holder to open it.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Freezes }),
	nanos("sluice_freeze_seconds_total", "Time that partitions waited so.", prometheus.CounterValue,
		func(s *snapshot) int64 { return s.cluster.Partitions.FrozenNanos }),
	nanos("sluice_freeze_seconds_max", "The longest of these times since the start.", prometheus.GaugeValue,
		func(s *snapshot) int64 { return s.cluster.Partitions.FrozenMax }),
	counter("sluice_fillings_total", "Copies of partitions that were begun at other nodes.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Fillings }),
	counter("sluice_parts_refused_total", "Parts of them that the other node refused.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Refused }),
	counter("sluice_fillings_damaged_total", "Copies of other nodes' partitions that could not be read or did not add up.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Damaged }),
	counter("sluice_counters_too_large_total", "Times that a counter was left out of copies and hand-offs because no message takes it: it has no replica.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.TooLarge }),
	counter("sluice_copied_counters_total", "Counters sent to other nodes in copies and hand-offs.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Counters }),
	counter("sluice_copied_bytes_total", "Bytes of these counters.",
		func(s *snapshot) uint64 { return s.cluster.Partitions.Bytes }),

	gauge("sluice_snapshot_timestamp_seconds", "When the last snapshot in --data-dir was begun, in Unix time; 0 if there is none since the start.",
		func(s *snapshot) float64 {
			if s.keeper.written == 0 {
				return 0
			}
			return float64(s.keeper.at.UnixNano()) / 1e9
		}),
	nanos("sluice_snapshot_duration_seconds", "How long that took.", prometheus.GaugeValue,
		func(s *snapshot) int64 { return int64(s.keeper.took) }),
	gauge("sluice_snapshot_bytes", "Its size.",
		func(s *snapshot) float64 { return float64(s.keeper.totals.Bytes) }),
	gauge("sluice_snapshot_counters", "Counters in it.",
		func(s *snapshot) float64 { return float64(s.keeper.totals.Counters) }),
	counter("sluice_snapshots_total", "Snapshots written.",
		func(s *snapshot) uint64 { return s.keeper.written }),
	counter("sluice_snapshots_failed_total", "Snapshots that could not be written; the one before stays.",
		func(s *snapshot) uint64 { return s.keeper.failed }),
	counter("sluice_snapshots_refused_total", "Snapshots found at the start that must not be used and were set aside.",
		func(s *snapshot) uint64 { return s.keeper.refused }),
	gauge("sluice_snapshot_restored_counters", "Counters read from a snapshot at the start.",
		func(s *snapshot) float64 { return float64(s.keeper.restored) }),

	counters("sluice_trace_spans_total", "Spans that were sent to the collector, could not be, or were dropped because too many were on their way.",
		[]string{"result"}, func(s *snapshot) []sample {
			return by("sent", s.spans.sent, "failed", s.spans.failed, "dropped", s.spans.dropped)
		}),
	gauge("sluice_trace_spans_waiting", "Spans that are on their way to the collector.",
		func(s *snapshot) float64 { return float64(s.spans.waiting) }),

	gauge("sluice_clock_skew_seconds", "How far this node's clock is ahead of the median of the voters whose clocks agree; 0 while no majority does.",
		func(s *snapshot) float64 { return s.cluster.Clock.Ahead.Seconds() }),
	gauge("sluice_clock_correction_seconds", "How far this node aligns new windows ahead of its clock, because that is off by more than --max-clock-skew.",
		func(s *snapshot) float64 { return s.cluster.Clock.Correction.Seconds() }),
	gauge("sluice_clocks_disagree", "1 while no majority of the voters has clocks that agree within --max-clock-skew.",
		func(s *snapshot) float64 { return flag(s.cluster.Clock.Known && !s.cluster.Clock.Agree) }),

	counter("sluice_ring_builds_total", "Ring tables built.",
		func(s *snapshot) uint64 { return s.cluster.RingBuilds }),
	counter("sluice_views_refused_total", "Views that gave no ring.",
		func(s *snapshot) uint64 { return s.cluster.ViewsRefused }),
}

func errorSamples(s *snapshot) []sample {
	var list []sample
	for code := limiter.Invalid; code.String() != limiter.Code(0).String(); code++ {
		list = append(list, sample{labels: []string{code.String()}, value: float64(s.service.Errors[code])})
	}
	return list
}

func ruleSamples(all []limiter.RuleStats) []sample {
	var list []sample
	for _, r := range all {
		for _, result := range []struct {
			name string
			n    uint64
		}{{"allowed", r.Allowed}, {"denied", r.Denied}, {"shadowed", r.Shadowed}, {"error", r.Errors}} {
			list = append(list, sample{labels: []string{r.Domain, r.Name, result.name}, value: float64(result.n)})
		}
	}
	return list
}
