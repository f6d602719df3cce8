package manifests

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// git runs git in the repository.
func git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		t.Fatalf("git %v: %v", args, err)
	}
	return string(out)
}

// TestOldName: the organization had another name, of which nothing is left.
func TestOldName(t *testing.T) {
	old := "sluice" + "-" + "project"
	out, err := exec.Command("git", "-C", root, "grep", "-I", "-i", "-n", "-F", "-e", old).Output()
	if err == nil {
		t.Errorf("%s is still in:\n%s", old, out)
	} else if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 { // 1: no line
		t.Error(err)
	}
	if files := git(t, "ls-files"); strings.Contains(files, old) {
		t.Errorf("a file is named after %s", old)
	}
}

// TestWorkflows: actions are pinned by a commit, whose version a comment names for dependabot.
func TestWorkflows(t *testing.T) {
	pinned := regexp.MustCompile(`^[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	versions := map[string]string{}
	for file := range strings.Lines(git(t, "ls-files", ".github/workflows")) {
		text, err := os.ReadFile(root + "/" + strings.TrimSpace(file))
		if err != nil {
			t.Fatal(err)
		}
		var workflow map[string]any
		if err := yaml.Unmarshal(text, &workflow); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if permissions, ok := workflow["permissions"].(map[string]any); !ok || len(permissions) != 0 {
			t.Errorf("%s: want permissions by job, and none for all", file)
		}
		for line := range strings.Lines(string(text)) {
			_, used, ok := strings.Cut(strings.TrimSpace(line), "uses: ")
			if !ok {
				continue
			}
			if !pinned.MatchString(used) {
				t.Errorf("%s: %s: want owner/action@commit # version", file, used)
			}
			action, at, _ := strings.Cut(used, "@")
			if other := versions[action]; other != "" && other != at {
				t.Errorf("%s: %s at %s, and elsewhere at %s", file, action, at, other)
			}
			versions[action] = at
		}
	}
	if len(versions) == 0 {
		t.Error("no workflow uses an action")
	}
}

// TestDependabot: each Go module is followed.
func TestDependabot(t *testing.T) {
	text, err := os.ReadFile(root + "/.github/dependabot.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	var want []string
	for file := range strings.Lines(git(t, "ls-files", "*go.mod")) {
		want = append(want, path.Join("/", path.Dir(strings.TrimSpace(file))))
	}
	for _, u := range config.Updates {
		if u.Ecosystem == "gomod" {
			slices.Sort(u.Directories)
			slices.Sort(want)
			if !slices.Equal(u.Directories, want) {
				t.Errorf("directories\n%v, want\n%v", u.Directories, want)
			}
			return
		}
	}
	t.Error("Go modules are not followed")
}
