// Command go-client checks tokens, TLS and authorization with the stock Go client and its default settings.
//
// Arguments: SERVICE_URL CA_FILE TOPIC WRITER_TOKEN READER_TOKEN STRANGER_TOKEN RENEWED_FILE SECONDS. It prints a line
// for each case, "ok NAME" or "FAIL NAME why"; exit code 1 when one failed. ClientSecured.java does the same in Java.
//
// With the arguments "write SERVICE_URL TOPIC" it writes each line of the standard input to the topic as its exclusive
// producer, and prints "sent LINE" after its receipt, like LineWriter.java.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	patience = 60 * time.Second
	messages = 5
	schema   = `{"type":"record","name":"Order","fields":[{"name":"number","type":"int"}]}`
	other    = `{"type":"record","name":"Order","fields":[{"name":"number","type":"string"},{"name":"more","type":"int"}]}`
)

type order struct {
	Number int `avro:"number" json:"number"`
}

type site struct {
	url, authorities, topic          string
	writer, reader, unauthorized, anyone pulsar.Authentication
	seconds                          int
}

func main() {
	words := os.Args[1:]
	if words[0] == "write" {
		if err := writeLines(words[1], words[2]); err != nil {
			panic(err)
		}
		return
	}
	seconds, err := strconv.Atoi(words[7])
	if err != nil {
		panic(err)
	}
	here := site{
		url: words[0], authorities: words[1], topic: words[2],
		writer:       pulsar.NewAuthenticationToken(words[3]),
		reader:       pulsar.NewAuthenticationToken(words[4]),
		unauthorized: pulsar.NewAuthenticationToken(words[5]),
		anyone:       pulsar.NewAuthenticationTokenFromFile(words[6]),
		seconds:      seconds,
	}
	cases := []struct {
		name string
		run  func() error
	}{
		{"access modes", here.accessModes},
		{"subscriptions", here.subscriptions},
		{"reader and seek", here.readerAndSeek},
		{"schemas", here.schemas},
		{"a renewed token", here.renewed},
		{"refusals", here.refusals},
	}
	failed := false
	for _, each := range cases {
		if err := each.run(); err != nil {
			fmt.Printf("FAIL %s %s\n", each.name, strings.ReplaceAll(err.Error(), "\n", " "))
			failed = true
			continue
		}
		fmt.Printf("ok %s\n", each.name)
	}
	if failed {
		os.Exit(1)
	}
}

func writeLines(url, topic string) error {
	client, err := site{url: url}.connect(nil)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive, SendTimeout: -1,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: lines.Bytes()}); err != nil {
			return err
		}
		fmt.Printf("sent %s\n", lines.Text())
	}
	return lines.Err()
}

func (s site) connect(who pulsar.Authentication) (pulsar.Client, error) {
	return pulsar.NewClient(pulsar.ClientOptions{
		URL: s.url, TLSTrustCertsFilePath: s.authorities, Authentication: who,
		Logger: log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
}

func (s site) accessModes() error {
	client, err := s.connect(s.writer)
	if err != nil {
		return err
	}
	defer client.Close()
	produce := func(mode pulsar.ProducerAccessMode) (pulsar.Producer, error) {
		return client.CreateProducer(pulsar.ProducerOptions{Topic: s.topic, ProducerAccessMode: mode})
	}
	shared, err := produce(pulsar.ProducerAccessModeShared)
	if err != nil {
		return fmt.Errorf("shared: %w", err)
	}
	if err := sendAll(shared, messages); err != nil {
		return err
	}
	shared.Close()
	holder, err := produce(pulsar.ProducerAccessModeExclusive)
	if err != nil {
		return fmt.Errorf("exclusive: %w", err)
	}
	if _, err := produce(pulsar.ProducerAccessModeExclusive); err == nil {
		return fmt.Errorf("two hold the topic exclusively")
	}
	if err := sendAll(holder, 1); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		waiter, err := produce(pulsar.ProducerAccessModeWaitForExclusive)
		if err == nil {
			err = sendAll(waiter, 1)
			waiter.Close()
		}
		waited <- err
	}()
	select {
	case err := <-waited:
		return fmt.Errorf("it did not wait: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	holder.Close()
	return <-waited
}

func (s site) subscriptions() error {
	client, err := s.connect(s.reader)
	if err != nil {
		return err
	}
	defer client.Close()
	for name, kind := range map[string]pulsar.SubscriptionType{
		"exclusive": pulsar.Exclusive, "shared": pulsar.Shared, "failover": pulsar.Failover,
	} {
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic: s.topic, SubscriptionName: name, Type: kind,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for number := 0; number < messages; number++ {
			message, err := receive(consumer)
			if err != nil {
				return fmt.Errorf("%s, message %d: %w", name, number, err)
			}
			if err := consumer.Ack(message); err != nil {
				return err
			}
		}
		if err := consumer.Unsubscribe(); err != nil {
			return fmt.Errorf("unsubscribe %s: %w", name, err)
		}
		consumer.Close()
	}
	return nil
}

func (s site) readerAndSeek() error {
	client, err := s.connect(s.reader)
	if err != nil {
		return err
	}
	defer client.Close()
	reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: s.topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		return err
	}
	defer reader.Close()
	for round := 0; round < 2; round++ {
		if !reader.HasNext() {
			return fmt.Errorf("round %d: nothing to read", round)
		}
		ends, cancel := context.WithTimeout(context.Background(), patience)
		message, err := reader.Next(ends)
		cancel()
		if err != nil {
			return err
		}
		// A reader does not include the message that it seeks, by default.
		if string(message.Payload()) != strconv.Itoa(round) {
			return fmt.Errorf("round %d: read %s", round, message.Payload())
		}
		// This client does not accept EarliestMessageID here.
		if err := reader.Seek(message.ID()); err != nil {
			return fmt.Errorf("seek of the reader: %w", err)
		}
	}
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: s.topic, SubscriptionName: "seeks", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	first, err := receive(consumer)
	if err != nil {
		return err
	}
	if err := consumer.Seek(first.ID()); err != nil {
		return fmt.Errorf("seek of the consumer: %w", err)
	}
	again, err := receive(consumer)
	if err != nil {
		return err
	}
	if string(first.Payload()) != "0" || string(again.Payload()) != "1" { // nor does a consumer
		return fmt.Errorf("a seek to %s leads to %s", first.Payload(), again.Payload())
	}
	return consumer.Unsubscribe()
}

func (s site) schemas() error {
	client, err := s.connect(s.writer)
	if err != nil {
		return err
	}
	defer client.Close()
	topic := s.topic + "-schema"
	described := pulsar.NewAvroSchema(schema, nil)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: described})
	if err != nil {
		return err
	}
	ends, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := producer.Send(ends, &pulsar.ProducerMessage{Value: order{7}}); err != nil {
		return err
	}
	producer.Close()
	if _, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Schema: pulsar.NewAvroSchema(other, nil),
	}); err == nil {
		return fmt.Errorf("a schema that does not fit was taken")
	}
	readers, err := s.connect(s.reader)
	if err != nil {
		return err
	}
	defer readers.Close()
	consumer, err := readers.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "typed", Schema: described,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	message, err := receive(consumer)
	if err != nil {
		return err
	}
	var found order
	if err := message.GetSchemaValue(&found); err != nil {
		return err
	}
	if found.Number != 7 {
		return fmt.Errorf("read %v", found)
	}
	return nil
}

// renewed publishes as one holder for longer than the lifetime of each token.
func (s site) renewed() error {
	client, err := s.connect(s.anyone)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: s.topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	ledgers := map[int64]bool{}
	for end := time.Now().Add(time.Duration(s.seconds) * time.Second); time.Now().Before(end); {
		ends, cancel := context.WithTimeout(context.Background(), patience)
		id, err := producer.Send(ends, &pulsar.ProducerMessage{Payload: []byte("still me")})
		cancel()
		if err != nil {
			return err
		}
		ledgers[id.LedgerID()] = true
		time.Sleep(100 * time.Millisecond)
	}
	if len(ledgers) != 1 {
		return fmt.Errorf("it was fenced meanwhile: ledgers %v", ledgers)
	}
	return nil
}

func (s site) refusals() error {
	if err := s.refused("an unauthorized client", s.unauthorized, true); err != nil {
		return err
	}
	return s.refused("a reader", s.reader, false)
}

func (s site) refused(who string, shows pulsar.Authentication, reads bool) error {
	client, err := s.connect(shows)
	if err != nil {
		return err
	}
	defer client.Close()
	attempts := map[string]func() error{"produce": func() error {
		_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: s.topic})
		return err
	}}
	if reads {
		attempts["subscribe"] = func() error {
			_, err := client.Subscribe(pulsar.ConsumerOptions{Topic: s.topic, SubscriptionName: "foreign"})
			return err
		}
		attempts["read"] = func() error {
			_, err := client.CreateReader(pulsar.ReaderOptions{
				Topic: s.topic, StartMessageID: pulsar.EarliestMessageID(),
			})
			return err
		}
	}
	for what, attempt := range attempts {
		if err := attempt(); err == nil || !strings.Contains(err.Error(), "AuthorizationError") {
			return fmt.Errorf("%s: %s: %v", who, what, err)
		}
	}
	return nil
}

func sendAll(producer pulsar.Producer, count int) error {
	ends, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for number := 0; number < count; number++ {
		content := []byte(strconv.Itoa(number))
		if _, err := producer.Send(ends, &pulsar.ProducerMessage{Payload: content}); err != nil {
			return err
		}
	}
	return nil
}

func receive(consumer pulsar.Consumer) (pulsar.Message, error) {
	ends, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return consumer.Receive(ends)
}
