package node

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOperatorsThroughProxies is TestOperatorsAreIdentified through the proxies themselves, HAProxy in both modes. They call from
// 127.0.0.1, and from the address of inbound sidecars; only who shows the token to the admin port is an operator.
func TestOperatorsThroughProxies(t *testing.T) {
	t.Parallel()
	n := startOperated(t)
	ports := map[string]string{"grpc": n.listen.grpc.Addr().String(), "http": n.listen.http.Addr().String(), "admin": n.listen.admin.Addr().String()}
	secret, err := os.ReadFile(strings.TrimSuffix(n.operators.place.Socket(), ".sock") + ".token")
	do(t, err)
	// One listener for each way of passing on, port, version of HTTP and source.
	for _, proxy := range []struct {
		program string
		modes   []string
		// config is the configuration around its listeners, and args run it in the foreground with such a file.
		config string
		args   []string
		listen func(mode, socket, to, from string, http2 bool) string
	}{
		{"nginx", []string{"http"}, "daemon off; master_process off; pid nginx.pid;\nevents {}\nhttp {\naccess_log off; client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n%s}\n",
			[]string{"-e", "stderr", "-p", ".", "-c"},
			func(_, socket, to, from string, http2 bool) string {
				if http2 {
					return fmt.Sprintf("server { listen unix:%s http2; location / { grpc_bind %s; grpc_pass grpc://%s; } }\n", socket, from, to)
				}
				return fmt.Sprintf("server { listen unix:%s; location / { proxy_bind %s; proxy_buffering off; proxy_pass http://%s; } }\n", socket, from, to)
			}},
		{"haproxy", []string{"tcp", "http"}, "defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n%s", []string{"-db", "-f"},
			func(mode, socket, to, from string, http2 bool) string {
				proto := ""
				if http2 && mode == "http" {
					proto = " proto h2"
				}
				return fmt.Sprintf("listen %s\n  mode %s\n  bind unix@%s%s\n  server node %s source %s%s\n", filepath.Base(socket), mode, socket, proto, to, from, proto)
			}},
	} {
		t.Run(proxy.program, func(t *testing.T) {
			path, err := exec.LookPath(proxy.program)
			if err != nil {
				path, err = exec.LookPath("/usr/sbin/" + proxy.program)
			}
			if err != nil && os.Getenv("SLUICE_PROXIES") == "required" {
				t.Fatal(err)
			} else if err != nil {
				t.Skipf("%s is not installed", proxy.program)
			}
			dir, err := os.MkdirTemp("", "sluice-") // sockets have short names
			do(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			var listeners strings.Builder
			var routes []route
			http2s := make(map[string]bool) // by route
			for _, mode := range proxy.modes {
				for name, to := range ports {
					for _, from := range []string{"127.0.0.1", "127.0.0.6"} {
						for _, http2 := range []bool{true, false} {
							if name == "grpc" && !http2 || name == "http" && http2 {
								continue
							}
							socket := filepath.Join(dir, fmt.Sprintf("%s-%s-%s-%t", mode, name, from, http2))
							listeners.WriteString(proxy.listen(mode, socket, to, from, http2))
							routes = append(routes, route{name: filepath.Base(socket), dial: anyOf("unix", socket, "")})
							http2s[filepath.Base(socket)] = http2
						}
					}
				}
			}
			file := filepath.Join(dir, "config")
			do(t, os.WriteFile(file, fmt.Appendf(nil, proxy.config, &listeners), 0o600))
			var log bytes.Buffer
			cmd := exec.Command(path, append(proxy.args, file)...)
			cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
			do(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				if t.Failed() {
					t.Logf("it wrote:\n%s", &log)
				}
			})
			for _, r := range routes {
				await(t, r.name+" listens", func() bool {
					conn, err := r.dial(t.Context())
					if err == nil {
						conn.Close()
					}
					return err == nil
				})
			}
			for _, token := range []string{"", strings.TrimSpace(string(secret))} {
				for _, r := range routes {
					r.token = token
					admin := strings.Contains(r.name, "-admin-")
					answered, all := []string(nil), 0
					if http2s[r.name] {
						answered, all = r.grpcCalls(t)
					} else {
						answered, all = r.httpCalls(t, admin)
					}
					if operator := admin && token != ""; operator && len(answered) != all || !operator && len(answered) > 0 {
						t.Errorf("%s, with the token %t: answered %v of %d", r.name, token != "", answered, all)
					}
				}
			}
		})
	}
}
