package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// franzShare acknowledges in every way: a released record comes again, a rejected or accepted one does not, and a renewed one stays.
func franzShare(ctx context.Context, bootstrap []string, topic string) error {
	written := []string{"accept", "release", "reject", "renew"}
	if err := franzProduce(ctx, bootstrap, topic, written); err != nil {
		return err
	}
	if err := beginAtTheStart(ctx, bootstrap, topic); err != nil {
		return err
	}
	var mu sync.Mutex
	var refused error
	client, _, err := franz(bootstrap, kgo.ShareGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			mu.Lock()
			defer mu.Unlock()
			if err := results.Error(); err != nil {
				refused = err
			}
		}))
	if err != nil {
		return err
	}
	defer client.Close()
	statuses := map[string]kgo.AckStatus{"accept": kgo.AckAccept, "release": kgo.AckRelease, "reject": kgo.AckReject, "renew": kgo.AckRenew}
	var first, again []string
	for len(first) < len(written) || len(again) < 1 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("after %v and %v: %w", first, again, err)
		}
		for record := range fetches.RecordsAll() {
			value := string(record.Value)
			if slices.Contains(first, value) {
				again = append(again, fmt.Sprintf("%s %d", value, record.DeliveryCount()))
				record.Ack(kgo.AckAccept)
				continue
			}
			first = append(first, value)
			record.Ack(statuses[value])
			if value == "renew" {
				if err := client.FlushAcks(ctx); err != nil {
					return err
				}
				record.Ack(kgo.AckAccept)
			}
		}
		if err := client.FlushAcks(ctx); err != nil {
			return err
		}
	}
	if err := expect("first deliveries", first, written); err != nil {
		return err
	}
	if err := expect("second deliveries", again, []string{"release 2"}); err != nil {
		return err
	}
	quiet, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if left := client.PollFetches(quiet).NumRecords(); left > 0 {
		return fmt.Errorf("%d records came again", left)
	}
	mu.Lock()
	defer mu.Unlock()
	return refused
}

func beginAtTheStart(ctx context.Context, bootstrap []string, group string) error {
	client, _, err := franz(bootstrap)
	if err != nil {
		return err
	}
	defer client.Close()
	value := "earliest"
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", &value
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if code := response.Resources[0].ErrorCode; code != 0 {
		return fmt.Errorf("error code %d for the settings of the group", code)
	}
	return nil
}
