package process

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the process when the thread that started it
// ends; Go keeps its threads unless a goroutine that is locked to one ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
