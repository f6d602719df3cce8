// Package node is one process of the cluster: it reads files, opens ports, joins the APIs, the limiter, the cluster node and
// gossip, starts and stops them in order, and maps their plain counters to Prometheus. The daemon, `sluice demo` and
// tests run nodes by Open and Run.
//
// It decides nothing about a limit, and knows no flags but by name. Run owns all goroutines and waits for them.
package node
