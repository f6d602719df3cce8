package manifests

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The image, the chart and the command that installs the binary, as every file names them.
const (
	// pagesURL is limiter.DocsURL without the folder; the tool that makes the site, in a module of its own, has it again.
	pagesURL    = "https://github.com/sluicecluster/sluice/blob/main"
	imageName   = "ghcr.io/sluicecluster/sluice"
	chartName   = "oci://ghcr.io/sluicecluster/charts/sluice"
	installLine = "go install github.com/sluicecluster/sluice/cmd/sluice@latest"
	chartLine   = "helm install sluice deploy/helm/sluice --namespace sluice --create-namespace"
)

// TestNames: documents, deployments and scripts name one image, one chart and one way to install each.
func TestNames(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "*.md", "Makefile", "deploy", "tools/release", "tools/release-test", ".github", "limiter/health.go", "tools/site/main.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	patterns := map[*regexp.Regexp][]string{
		regexp.MustCompile(`\b[\w./-]*sluice:(?:dev|v\d)`):                               {imageName + ":dev", imageName + ":v0"},
		regexp.MustCompile(`(?:oci://)?ghcr\.io/[\w./-]+`):                               {imageName, chartName, "ghcr.io/sluicecluster/charts"},
		regexp.MustCompile(`https://github\.com/[\w-]+/sluice/blob/main/`):               {pagesURL},
		regexp.MustCompile(`go install [^\n` + "`" + `]*sluicecluster[^\s` + "`" + `]*`): {installLine},
		regexp.MustCompile(`helm install [^\n` + "`" + `]*`):                             {chartLine},
	}
	seen := map[string]bool{}
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		info, err := os.Stat(root + "/" + file)
		if err != nil || info.IsDir() {
			continue
		}
		data, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for pattern, allowed := range patterns {
			for _, found := range pattern.FindAllString(string(data), -1) {
				found = strings.TrimRight(found, ".-/")
				if !slices.Contains(allowed, found) {
					t.Errorf("%s: %q, want one of %q", file, found, allowed)
				}
				seen[file+" "+found] = true
			}
		}
	}
	for _, want := range []string{
		"limiter/health.go " + pagesURL, "tools/site/main.go " + pagesURL,
		"Makefile " + imageName, "deploy/compose/compose.yaml " + imageName, "deploy/k8s/base/statefulset.yaml " + imageName, "deploy/helm/sluice/values.yaml " + imageName,
		"tools/release/build " + imageName, ".github/workflows/release.yaml " + imageName, "docs/start/install.md " + imageName, "README.md " + imageName,
		"docs/start/install.md " + chartName, "docs/start/install.md " + installLine, "docs/start/install.md " + chartLine, "deploy/helm/sluice/README.md " + chartLine, "README.md " + chartLine,
	} {
		if !seen[want] {
			t.Errorf("not found: %s", want)
		}
	}
}

// TestLinuxPackage: the example configuration, its commented part too, has settings of the binary, and the service may use their folders.
func TestLinuxPackage(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(root + "/deploy/linux/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	values := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^(?:# )?([a-z-]+): (\S+)$`).FindAllStringSubmatch(read("sluice.yaml"), -1) {
		name := "SLUICE_" + strings.ToUpper(strings.ReplaceAll(line[1], "-", "_"))
		if _, ok := settings[name]; !ok {
			t.Errorf("sluice.yaml: %s is not a setting of sluice serve", line[1])
		}
		values[line[1]] = line[2]
	}
	unit := read("sluice.service")
	for _, want := range []string{
		"User=sluice", "ExecStart=/usr/bin/sluice serve --config /etc/sluice/sluice.yaml",
		"StateDirectory=" + strings.TrimPrefix(values["data-dir"], "/var/lib/"), "RuntimeDirectory=" + strings.Split(values["operators-dir"], "/")[2],
	} {
		if !strings.Contains(unit, "\n"+want+"\n") {
			t.Errorf("sluice.service: want %s", want)
		}
	}
	if len(values) < 9 || !strings.Contains(read("preinstall"), "useradd --system --gid sluice") {
		t.Errorf("sluice.yaml has %d settings; preinstall must add the user sluice", len(values))
	}
}
