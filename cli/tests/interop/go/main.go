// What a Go program of 9fans.net does with a served directory, by several
// clients at once. Arguments: network, address, export, clients.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"9fans.net/go/plan9"
	"9fans.net/go/plan9/client"
)

// pattern is what file n holds.
func pattern(n, length int) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(i*7 + n + i>>8)
	}
	return data
}

// file makes, writes, reads, renames and lists files in a directory of its own.
func file(fsys *client.Fsys, export string, n int) error {
	dir := fmt.Sprintf("%s/go-%d", export, n)
	fid, err := fsys.Create(dir, plan9.OREAD, plan9.DMDIR|0755)
	if err != nil {
		return err
	}
	fid.Close()
	data := pattern(n, 300000+1000*n)
	fid, err = fsys.Create(dir+"/first", plan9.ORDWR, 0644)
	if err != nil {
		return err
	}
	if _, err = fid.WriteAt(data, 0); err != nil {
		return err
	}
	back := make([]byte, len(data))
	for at := 0; at < len(back); {
		got, err := fid.ReadAt(back[at:], int64(at))
		if err != nil {
			return fmt.Errorf("read at %d: %w", at, err)
		}
		at += got
	}
	if !bytes.Equal(back, data) {
		return fmt.Errorf("%s/first holds other bytes than were written", dir)
	}
	fid.Close()
	stat, err := fsys.Stat(dir + "/first")
	if err != nil {
		return err
	}
	if stat.Name != "first" || stat.Length != uint64(len(data)) || stat.Mode != 0644 {
		return fmt.Errorf("stat: %v", stat)
	}
	var change plan9.Dir
	change.Null()
	change.Name = "renamed"
	change.Mode = 0600
	if err := fsys.Wstat(dir+"/first", &change); err != nil {
		return err
	}
	if _, err = fsys.Stat(dir + "/first"); err == nil {
		return fmt.Errorf("%s/first is still there", dir)
	}
	fid, err = fsys.Create(dir+"/gone", plan9.OWRITE, 0644)
	if err != nil {
		return err
	}
	fid.Close()
	if err := fsys.Remove(dir + "/gone"); err != nil {
		return err
	}
	fid, err = fsys.Open(dir, plan9.OREAD)
	if err != nil {
		return err
	}
	defer fid.Close()
	entries, err := fid.Dirreadall()
	if err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Name != "renamed" {
		return fmt.Errorf("%s holds %v", dir, entries)
	}
	return nil
}

// big reads the file that was there before.
func big(fsys *client.Fsys, export string) error {
	fid, err := fsys.Open(export+"/big", plan9.OREAD)
	if err != nil {
		return err
	}
	defer fid.Close()
	data, err := io.ReadAll(fid)
	if err != nil {
		return err
	}
	if !bytes.Equal(data, pattern(99, len(data))) || len(data) != 3000000 {
		return fmt.Errorf("big holds %d other bytes", len(data))
	}
	return nil
}

func one(network, address, export string, n int) error {
	conn, err := client.Dial(network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	fsys, err := conn.Attach(nil, "glenda", "")
	if err != nil {
		return err
	}
	// Two at once over one connection.
	done := make(chan error)
	go func() { done <- big(fsys, export) }()
	err = file(fsys, export, n)
	if other := <-done; err == nil {
		err = other
	}
	return err
}

func main() {
	clients, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	failed := make(chan error, clients)
	for n := 0; n < clients; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := one(os.Args[1], os.Args[2], os.Args[3], n); err != nil {
				failed <- fmt.Errorf("client %d: %w", n, err)
			}
		}()
	}
	all.Wait()
	close(failed)
	code := 0
	for err := range failed {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
