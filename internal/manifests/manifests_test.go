package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// secretFile is the file that a user of the example overlay makes.
const secretFile = "overlays/example/cluster.secret"

var (
	k8s = os.DirFS("../../deploy/k8s")
	// program is built once, by TestMain.
	program *Program
	ports   Ports
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-manifests-")
	if err == nil {
		program, err = BuildProgram("../..", dir)
	}
	if err == nil {
		ports, err = program.Ports()
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func build(t *testing.T, dir string) *Objects {
	t.Helper()
	extra := map[string]string{}
	if strings.HasPrefix(dir, "overlays/") {
		extra[secretFile] = strings.Repeat("s", 44)
	}
	o, err := Build(k8s, dir, extra)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestKubernetes(t *testing.T) {
	for _, dir := range []string{"base", "overlays/example", "overlays/durable", "overlays/production", "overlays/secured"} {
		t.Run(dir, func(t *testing.T) {
			o := build(t, dir)
			for _, fault := range Judge(o, program.Settings, ports) {
				t.Error(fault)
			}
			for name, m := range o.ConfigMaps {
				if name == "sluice-callers" {
					checkCallers(t, name, m)
				} else {
					checkRules(t, name, m)
				}
			}
		})
	}
}

// checkRules lets the binary read the rules as a pod would.
func checkRules(t *testing.T, name string, m *corev1.ConfigMap) {
	t.Helper()
	dir := t.TempDir()
	if len(m.Data) == 0 {
		t.Errorf("ConfigMap %s holds no rules", name)
	}
	for file, text := range m.Data {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := program.Run("rules", "check", dir); err != nil {
		t.Errorf("ConfigMap %s: %v", name, err)
	}
}

// checkCallers lets the binary read the callers as a pod would.
func checkCallers(t *testing.T, name string, m *corev1.ConfigMap) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "callers.yaml")
	if err := os.WriteFile(file, []byte(m.Data["callers.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := program.Run("callers", "check", file); err != nil {
		t.Errorf("ConfigMap %s: %v", name, err)
	}
}

func TestBaseHasNoSecret(t *testing.T) {
	if o := build(t, "base"); len(o.Secrets) > 0 {
		t.Error("the base carries a secret, which would be everybody's")
	}
	if o := build(t, "overlays/example"); len(o.Secrets) != 1 {
		t.Errorf("the overlay makes %d secrets, want 1", len(o.Secrets))
	}
}

func TestOverlayChangesWhatItSays(t *testing.T) {
	o := build(t, "overlays/example")
	if got := *o.StatefulSet.Spec.Replicas; got != 5 {
		t.Errorf("replicas %d, want 5", got)
	}
	if o.Namespace == nil || o.StatefulSet.Namespace != o.Namespace.Name {
		t.Errorf("the StatefulSet is in namespace %q", o.StatefulSet.Namespace)
	}
	rules := o.ConfigMaps["sluice-rules"]
	if rules == nil || rules.Data["shop.yaml"] == "" || rules.Data["api.yaml"] != "" {
		t.Errorf("the rules are not the overlay's: %v", rules)
	}
}

// TestDurable breaks what the durable overlay adds to the base.
func TestDurable(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(o *Objects, c *corev1.Container)
	}{
		{"mount data has no volume", func(o *Objects, _ *corev1.Container) { o.StatefulSet.Spec.VolumeClaimTemplates = nil }},
		{"no volume of the pod's own", func(o *Objects, _ *corev1.Container) { o.StatefulSet.Spec.VolumeClaimTemplates = nil }},
		{"SLUICE_DATA_DIR is \"/tmp\"", func(o *Objects, c *corev1.Container) { setEnv("SLUICE_DATA_DIR", "/tmp")(o, nil, c) }},
		{"volumes that are not mounted", func(_ *Objects, c *corev1.Container) {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "data" })
		}},
		{"cannot be written", func(_ *Objects, c *corev1.Container) {
			for i := range c.VolumeMounts {
				c.VolumeMounts[i].ReadOnly = true
			}
		}},
		{"not for one node alone", func(o *Objects, _ *corev1.Container) {
			o.StatefulSet.Spec.VolumeClaimTemplates[0].Spec.AccessModes[0] = corev1.ReadWriteMany
		}},
		{"has no size", func(o *Objects, _ *corev1.Container) {
			o.StatefulSet.Spec.VolumeClaimTemplates[0].Spec.Resources = corev1.VolumeResourceRequirements{}
		}},
		{"scaled to 0", func(o *Objects, _ *corev1.Container) { o.StatefulSet.Spec.PersistentVolumeClaimRetentionPolicy = nil }},
	} {
		t.Run(c.want, func(t *testing.T) {
			o := build(t, "overlays/durable")
			c.spoil(o, &o.StatefulSet.Spec.Template.Spec.Containers[0])
			faults := Judge(o, program.Settings, ports)
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("the judge says %q", faults)
			}
		})
	}
}

// TestStrict spoils a file of the base at a time.
func TestStrict(t *testing.T) {
	for _, c := range []struct{ name, file, old, new, want string }{
		{"unknown field", "base/statefulset.yaml", "minReadySeconds:", "minReadySecond:", `unknown field "minReadySecond"`},
		{"field of another type", "base/poddisruptionbudget.yaml", "maxUnavailable: 1", "maxUnavailable: [1]", "PodDisruptionBudget sluice"},
		{"unknown kind", "base/serviceaccount.yaml", "kind: ServiceAccount", "kind: ServiceAcount", "nobody judges v1 ServiceAcount"},
		{"unknown key of kustomize", "base/kustomization.yaml", "resources:", "resource:", `unknown field "resource"`},
		{"missing file", "base/kustomization.yaml", "services.yaml", "service.yaml", "service.yaml"},
		{"two of one", "base/kustomization.yaml", "  - services.yaml\n", "  - services.yaml\n  - other.yaml\n", "there are two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("../../deploy/k8s", c.file))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), c.old) {
				t.Fatalf("%s has no %q to spoil", c.file, c.old)
			}
			_, err = Build(k8s, "base", map[string]string{
				c.file:            strings.Replace(string(data), c.old, c.new, 1),
				"base/other.yaml": "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: other}\n",
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about: %s", err, c.want)
			}
		})
	}
}

// TestJudge breaks one thing at a time and wants the judge to see it.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(o *Objects, pod *corev1.PodSpec, c *corev1.Container)
	}{
		{"there is no StatefulSet", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.StatefulSet = nil }},
		{"2 containers", func(_ *Objects, p *corev1.PodSpec, c *corev1.Container) { p.Containers = append(p.Containers, *c) }},
		{"PodDisruptionBudget does not select", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Budget.Spec.Selector.MatchLabels["app.kubernetes.io/name"] = "slice"
		}},
		{"Service sluice does not select", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.Services["sluice"].Spec.Selector = nil }},
		{"nothing keeps pods apart", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.Affinity = nil }},
		{"is not headless", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Services["sluice-peers"].Spec.ClusterIP = ""
		}},
		{"before they have joined", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Services["sluice-peers"].Spec.PublishNotReadyAddresses = false
		}},
		{"not started in parallel", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.StatefulSet.Spec.PodManagementPolicy = "" }},
		{"is no Service", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.StatefulSet.Spec.ServiceName = "peers" }},
		{"SLUICE_JOIN is", setEnv("SLUICE_JOIN", "sluice")},
		{"SLUICE_BOOTSTRAP_EXPECT is \"\"", setEnv("SLUICE_BOOTSTRAP_EXPECT", "")},
		{"SLUICE_BOOTSTRAP_EXPECT is 1, want more than half of the 3 pods", setEnv("SLUICE_BOOTSTRAP_EXPECT", "1")},
		{"SLUICE_BOOTSTRAP_EXPECT is 6, and there may be", setEnv("SLUICE_BOOTSTRAP_EXPECT", "6")},
		{"want the first pods", setEnv("SLUICE_BOOTSTRAP_NAMES", "sluice-0,sluice-1,sluice-3")},
		{"SLUICE_BOOTSTRAP_EXPECT is 3, want more than half of the 7 pods", func(o *Objects, s *corev1.PodSpec, c *corev1.Container) {
			setEnv("SLUICE_BOOTSTRAP_NAMES", "")(o, s, c)
			*o.StatefulSet.Spec.Replicas = 7
		}},
		{"SLUICE_ADVERTISE is not from status.podIP", setEnv("SLUICE_ADVERTISE", "10.0.0.1")},
		{"SLUICE_PEERS is no setting", addEnv("SLUICE_PEERS")},
		{"SLUICE_RULES is set twice", addEnv("SLUICE_RULES")},
		{"container: ports", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.Ports[4].Protocol = corev1.ProtocolTCP }},
		{"port grpc leads to", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Services["sluice"].Spec.Ports[0].TargetPort = intstr.FromString("http")
		}},
		{"that it is HTTP/2", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Services["sluice"].Spec.Ports[0].AppProtocol = nil
		}},
		{"Service sluice: ports", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Services["sluice"].Spec.Ports = o.Services["sluice-peers"].Spec.Ports
		}},
		{"7462/TCP is not for nodes alone", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.NetworkPolicy.Spec.Ingress[1].From = nil }},
		{"NetworkPolicy, for callers", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.NetworkPolicy.Spec.Ingress[0].Ports = o.NetworkPolicy.Spec.Ingress[0].Ports[:1]
		}},
		{"egress rules that do not count", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.NetworkPolicy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
		}},
		{"chooses no namespaces", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.NetworkPolicy.Spec.Ingress[1].From[0].PodSelector.MatchLabels["app.kubernetes.io/name"] = "web"
		}},
		{"no ConfigMap sluice-rules", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { delete(o.ConfigMaps, "sluice-rules") }},
		{"mount secret can be written", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.VolumeMounts[1].ReadOnly = false }},
		{"by subPath never changes", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.VolumeMounts[0].SubPath = "api.yaml" }},
		{"SLUICE_OPERATORS_DIR is \"/run/sluice\"", setEnv("SLUICE_OPERATORS_DIR", "/run/sluice")},
		{"SLUICE_OPERATORS_DIR is \"/etc/sluice/rules/x\"", setEnv("SLUICE_OPERATORS_DIR", "/etc/sluice/rules/x")},
		{"socket cannot be made", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			for i := range c.VolumeMounts {
				c.VolumeMounts[i].ReadOnly = true
			}
		}},
		{"volume spare is for nothing", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "spare", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}},
		{"no Secret is mounted", setEnv("SLUICE_SECRET_FILE", "/secret")},
		{"has no file cluster", setEnv("SLUICE_SECRET_FILE", "/etc/sluice/secret/cluster")},
		{"the one that everybody knows", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.Volumes[1].Secret.Optional = new(true) }},
		{"can read the secret", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.Volumes[1].Secret.DefaultMode = nil }},
		{"has no key secret", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.Secrets["sluice-secret"].Data = nil }},
		{"a token for the Kubernetes API", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.AutomountServiceAccountToken = nil }},
		{"as user and group 65532", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.SecurityContext.RunAsUser = new(int64(0)) }},
		{"no seccomp profile", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.SecurityContext.SeccompProfile = nil }},
		{"share the machine's namespaces", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) { p.HostNetwork = true }},
		{"pod security, restricted: unrestricted capabilities", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.Capabilities.Drop = nil
		}},
		{"pod security, restricted: restricted volume types", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) {
			p.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}
		}},
		{"pod security, restricted: seccompProfile", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) {
			p.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined
		}},
		{"enforces pod security \"\"", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { o.Namespace.Labels = nil }},
		{"may gain privileges", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.AllowPrivilegeEscalation = nil
		}},
		{"can write its root", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.ReadOnlyRootFilesystem = new(false)
		}},
		{"keeps capabilities", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		}},
		{"memory limit is not what it requests", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("2Gi")
		}},
		{"want at most 80 % of its memory limit", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "SLUICE_MEMORY_LIMIT" })
		}},
		{"SLUICE_MEMORY_LIMIT alone bounds memory", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: "900MiB"})
		}},
		{"readiness probe asks", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.ReadinessProbe.HTTPGet.Path = "/healthz" }},
		{"no liveness probe", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.LivenessProbe = nil }},
		{"startup probe asks", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
			c.StartupProbe.HTTPGet.Port = intstr.FromString("grpc")
		}},
		{"where the annotations say", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.StatefulSet.Spec.Template.Annotations["prometheus.io/port"] = "9090"
		}},
		{"replicas must be odd", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) { *o.StatefulSet.Spec.Replicas = 2 }},
		{"more than one node may go", func(o *Objects, _ *corev1.PodSpec, _ *corev1.Container) {
			o.Budget.Spec.MaxUnavailable = new(intstr.FromString("50%"))
		}},
		{"before others have heard", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.Lifecycle = nil }},
		{"does not show why a node ended", func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) { c.TerminationMessagePolicy = "" }},
		{"too little time to stop", func(_ *Objects, p *corev1.PodSpec, _ *corev1.Container) {
			p.TerminationGracePeriodSeconds = new(int64(1))
		}},
	} {
		t.Run(c.want, func(t *testing.T) {
			o := build(t, "overlays/example")
			pod := &o.StatefulSet.Spec.Template.Spec
			c.spoil(o, pod, &pod.Containers[0])
			faults := Judge(o, program.Settings, ports)
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("the judge says %q", faults)
			}
		})
	}
}

func setEnv(name, value string) func(*Objects, *corev1.PodSpec, *corev1.Container) {
	return func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
		for i := range c.Env {
			if c.Env[i].Name == name {
				c.Env[i] = corev1.EnvVar{Name: name, Value: value}
			}
		}
	}
}

func addEnv(name string) func(*Objects, *corev1.PodSpec, *corev1.Container) {
	return func(_ *Objects, _ *corev1.PodSpec, c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "x"})
	}
}
