package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	path    = "github.com/sluicecluster/sluice"
	version = "v0.1.0-test"
	// most is how many modules a program may have that uses the SDK alone. gRPC brings 39 of them.
	most = 45
)

// TestModules publishes this tree in a proxy of files, with the environment's proxies behind it, and uses it as others do.
func TestModules(t *testing.T) {
	root, proxy := copyTree(t), t.TempDir()
	if err := publish(root, version, proxy); err != nil {
		t.Fatal(err)
	}
	downloads := t.TempDir()
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -modcacherw", "CGO_ENABLED=0", "GOSUMDB=off", "GOMODCACHE="+downloads,
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(goEnv(t, "GOMODCACHE"), "cache/download")+","+goEnv(t, "GOPROXY"))
	command := func(t *testing.T, dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
		}
		return string(out)
	}
	// build makes a program of a main function and requirements, and returns the modules that it has.
	build := func(t *testing.T, main string, requires ...string) map[string]string {
		t.Helper()
		dir := t.TempDir()
		write(t, filepath.Join(dir, "main.go"), main)
		write(t, filepath.Join(dir, "go.mod"), "module example.com/program\n\ngo 1.26.0\n\nrequire "+strings.Join(requires, "\nrequire ")+"\n")
		command(t, dir, "go", "mod", "tidy")
		command(t, dir, "go", "build", "-o", "program")
		modules := make(map[string]string)
		for line := range strings.Lines(command(t, dir, "go", "list", "-m", "all")) {
			name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
			modules[name] = version
		}
		info, err := os.Stat(filepath.Join(dir, "program"))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d modules, a binary of %.1f MB", len(modules), float64(info.Size())/1e6)
		return modules
	}

	t.Run("tidy", func(t *testing.T) {
		for line := range strings.Lines(read(t, filepath.Join(root, "go.work"))) {
			if dir, ok := strings.CutPrefix(strings.TrimSpace(line), "."); ok {
				command(t, filepath.Join(root, dir), "go", "mod", "tidy", "-diff")
			}
		}
	})
	t.Run("daemon", func(t *testing.T) {
		dir := t.TempDir()
		env = append(env, "GOBIN="+dir)
		command(t, dir, "go", "install", path+"/cmd/sluice@"+version)
		if out := command(t, dir, filepath.Join(dir, "sluice"), "version"); !strings.Contains(out, version) {
			t.Errorf("%q for %s", out, version)
		}
	})
	t.Run("SDK", func(t *testing.T) {
		modules := build(t, program(""), path+"/client "+version)
		if len(modules) > most {
			t.Errorf("%d modules, want at most %d: %v", len(modules), most, modules)
		}
		if _, ok := modules[path]; ok {
			t.Errorf("the SDK requires %s, the module of the daemon", path)
		}
	})
	t.Run("SDK beside older libraries", func(t *testing.T) {
		older := map[string]string{"github.com/prometheus/client_golang": "v1.23.2", "go.opentelemetry.io/otel": "v1.43.0"}
		requires := []string{path + "/client " + version}
		for name, version := range older {
			requires = append(requires, name+" "+version)
		}
		modules := build(t, program(`prometheus.NewRegistry(); otel.GetMeterProvider()`, "github.com/prometheus/client_golang/prometheus", "go.opentelemetry.io/otel"), requires...)
		for name, version := range older {
			if modules[name] != version {
				t.Errorf("%s is moved from %s to %s", name, version, modules[name])
			}
		}
	})
	t.Run("SDK with Prometheus", func(t *testing.T) {
		build(t, program(`prom.New()`, path+"/client/prom"), path+"/client/prom "+version)
	})
	t.Run("limiter in one process", func(t *testing.T) {
		build(t, "package main\n\nimport \""+path+"/limiter/local\"\n\nfunc main() {\n\tprintln(local.New(local.Text(`domain: shop`)))\n}\n", path+" "+version)
	})
	t.Run("SDK with OpenTelemetry", func(t *testing.T) {
		build(t, program(`otel.New(nil)`, path+"/client/otel"), path+"/client/otel "+version)
	})
}

// program is one that uses the SDK, and does more with other packages.
func program(more string, imports ...string) string {
	imports = append(imports, "context")
	return fmt.Sprintf("package main\n\nimport (\n\t\"%s\"\n\tsluice \"%s/client\"\n)\n\nfunc main() {\n\t%s\n\tc, err := sluice.New(\"127.0.0.1:7460\")\n"+
		"\tif err == nil {\n\t\tprintln(c.Key(\"shop\", \"user\", \"ann\").Allow(context.Background()))\n\t}\n}\n", strings.Join(imports, "\"\n\t\""), path, more)
}

func TestRejected(t *testing.T) {
	for _, c := range []struct{ version, more, err string }{
		{"v1.2.3", "", ""},
		{"1.2.3", "", "version"},
		{"v1.2", "", "version"},
		{"v1.2.3+build", "", "version"},
		{"v2.0.0", "", "version"},
		{"451320e5", "", "version"},
		{"v1.2.3", "replace example.com/x => ../x", "replaces example.com/x"},
		{"v1.2.3", "require example.com/a v0.0.0", "requires itself"},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "LICENSE"), "")
		write(t, filepath.Join(dir, "go.work"), "go 1.26.0\nuse (\n.\n./b\n)\n")
		write(t, filepath.Join(dir, "go.mod"), "module example.com/a\ngo 1.26.0\nrequire example.com/a/b v0.0.0\nreplace example.com/a/b => ./b\n")
		write(t, filepath.Join(dir, "b", "go.mod"), "module example.com/a/b\ngo 1.26.0\n"+c.more+"\n")
		if err := publish(dir, c.version, t.TempDir()); fmt.Sprint(err) != "<nil>" && c.err == "" || c.err != "" && !strings.Contains(fmt.Sprint(err), c.err) {
			t.Errorf("%s with %q: error %v, want %q", c.version, c.more, err, c.err)
		}
	}
}

// copyTree returns a copy of the files of this tree, with changes that are not committed.
func copyTree(t *testing.T) string {
	t.Helper()
	const root = "../.."
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("needs a checkout: %v", err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(data))
	}
	return dir
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), fs.ModePerm); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
