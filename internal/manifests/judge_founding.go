package manifests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// founding: no two parts of the pods found a cluster each. Either more than half of all that there may ever be have to come together, or
// only the first ordinals found one, which are there whatever the number of replicas.
func (j *judge) founding() {
	set := j.StatefulSet
	least, most := 1, 1
	if set.Spec.Replicas != nil {
		least, most = int(*set.Spec.Replicas), int(*set.Spec.Replicas)
	}
	if j.Autoscaler != nil {
		most = int(j.Autoscaler.Spec.MaxReplicas)
		if n := j.Autoscaler.Spec.MinReplicas; n != nil {
			least = int(*n)
		}
	}
	expect, err := strconv.Atoi(j.env("SLUICE_BOOTSTRAP_EXPECT").Value)
	j.want(err == nil && expect > 0, "SLUICE_BOOTSTRAP_EXPECT is %q, want a number of nodes", j.env("SLUICE_BOOTSTRAP_EXPECT").Value)
	if names := j.env("SLUICE_BOOTSTRAP_NAMES").Value; names != "" {
		founders := strings.Split(names, ",")
		for i := range founders {
			j.want(slices.Contains(founders, fmt.Sprintf("%s-%d", set.Name, i)), "SLUICE_BOOTSTRAP_NAMES is %s, want the first pods of the StatefulSet", names)
		}
		j.want(len(founders) <= least, "SLUICE_BOOTSTRAP_NAMES is %s, and there may be %d pods only", names, least)
		most = len(founders)
	}
	j.want(expect <= least, "SLUICE_BOOTSTRAP_EXPECT is %d, and there may be %d pods only", expect, least)
	j.want(2*expect > most, "SLUICE_BOOTSTRAP_EXPECT is %d, want more than half of the %d pods that may found a cluster", expect, most)
}
