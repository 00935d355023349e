import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Checks the broker with Pulsar's Java client: scenarios of exclusive producers, and most of the client's API.
 * Arguments: service URL, admin URL, optionally a regular expression that selects cases.
 * Prints a line for each case, "ok NAME" or "FAIL NAME reason"; exit code 1 if a case failed.
 * One long file, because Java runs a single source file without a build.
 */
public final class ClientConformance implements AutoCloseable {
    /** The steps of a case; it fails if they throw. */
    interface Case {
        void run() throws Exception;
    }

    /** Cases that run concurrently. They use different topics. */
    private static final int CASES_AT_ONCE = 8;

    /** Time limit for an expected event. It is generous, because the machine may be slow. */
    private static final int SECONDS_MAX = 60;

    /** How long a case waits to see that nothing arrives. */
    private static final int NOTHING_MILLISECONDS = 500;

    private static final ProducerAccessMode[] EXCLUSIVE_MODES = {
        ProducerAccessMode.Exclusive,
        ProducerAccessMode.WaitForExclusive,
        ProducerAccessMode.ExclusiveWithFencing
    };

    private final String serviceUrl;
    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final Map<String, Case> cases = new LinkedHashMap<>();

    /**
     * Each case has its own instance and client. Pulsar's client closes the whole connection when a
     * producer or consumer is closed while it reconnects (as it does after a seek). All others on that
     * connection would lose their exclusive right, and get messages again.
     */
    private ClientConformance(String serviceUrl, PulsarAdmin admin) throws Exception {
        this.serviceUrl = serviceUrl;
        this.admin = admin;
        client = connect();
        exclusiveProducers();
        consumers();
        administration();
        refusals();
        schemas();
        compaction();
    }

    public static void main(String[] arguments) throws Exception {
        String serviceUrl = arguments[0];
        PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
        Pattern chosen = Pattern.compile(arguments.length > 2 ? arguments[2] : ".*");
        ExecutorService threads = Executors.newFixedThreadPool(CASES_AT_ONCE);
        List<Future<Boolean>> outcomes = new ArrayList<>();
        try (ClientConformance all = new ClientConformance(serviceUrl, admin)) {
            for (String name : all.cases.keySet()) {
                if (chosen.matcher(name).find()) {
                    outcomes.add(threads.submit(() -> passes(serviceUrl, admin, name)));
                }
            }
        }
        boolean allPassed = true;
        for (Future<Boolean> outcome : outcomes) {
            allPassed &= outcome.get();
        }
        System.out.println(outcomes.size() + " cases");
        System.exit(allPassed ? 0 : 1);
    }

    private static boolean passes(String serviceUrl, PulsarAdmin admin, String name) {
        long start = System.nanoTime();
        try (ClientConformance conformance = new ClientConformance(serviceUrl, admin)) {
            conformance.cases.get(name).run();
        } catch (Throwable error) {
            String lines = Arrays.stream(error.getStackTrace())
                .filter(frame -> frame.getClassName().startsWith("ClientConformance"))
                .map(frame -> String.valueOf(frame.getLineNumber()))
                .collect(Collectors.joining(" < "));
            String why = String.valueOf(error).replace('\n', ' ');
            System.out.printf("FAIL %s, at line %s: %s%n", name, lines, why);
            return false;
        }
        System.out.printf("ok %s, %.1f s%n", name, (System.nanoTime() - start) / 1e9);
        return true;
    }

    /** Closes the client, and with it everything that the case left open. */
    @Override
    public void close() throws PulsarClientException {
        client.shutdown();
    }

    // ------------------------------------------------------------------ exclusive producers

    private void exclusiveProducers() {
        for (int partitions : new int[] {0, 3}) {
            String kind = partitions == 0 ? "" : " partitioned";
            cases.put("exclusive simple" + kind, () -> simple(topic(partitions), partitions));
            cases.put("exclusive with consumers" + kind, () -> {
                String topic = topic(partitions);
                try (Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                        .subscriptionName("beside").subscribe()) {
                    simple(topic, partitions);
                    check(consumer.receive(SECONDS_MAX, TimeUnit.SECONDS) != null, "nothing was delivered");
                }
            });
            cases.put("exclusive beside shared" + kind, () -> {
                String topic = topic(partitions);
                try (Producer<byte[]> shared = producer(topic, ProducerAccessMode.Shared)) {
                    refused(PulsarClientException.ProducerFencedException.class,
                        () -> producer(topic, ProducerAccessMode.Exclusive));
                    shared.send(bytes("undisturbed"));
                }
            });
            cases.put("waiter after two shared" + kind, () -> {
                String topic = topic(partitions);
                Producer<byte[]> first = producer(topic, ProducerAccessMode.Shared);
                Producer<byte[]> second = producer(topic, ProducerAccessMode.Shared);
                CompletableFuture<Producer<byte[]>> waiter = waiting(topic);
                waits(topic, partitions, 1, waiter);
                first.close();
                waits(topic, partitions, 1, waiter);
                second.close();
                waiter.get(SECONDS_MAX, TimeUnit.SECONDS).close();
            });
            for (ProducerAccessMode mode : EXCLUSIVE_MODES) {
                cases.put("reconnection " + mode + kind, () -> {
                    String topic = topic(partitions);
                    try (Producer<byte[]> holder = producer(topic, mode)) {
                        holder.send(bytes("before"));
                        long epoch = epoch(topic, partitions);
                        admin.topics().unload(topic);
                        holder.send(bytes("after"));
                        check(epoch == epoch(topic, partitions), "another topic epoch");
                    }
                });
            }
            cases.put("waiting first come first served" + kind, () -> {
                String topic = topic(partitions);
                Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive);
                CompletableFuture<Producer<byte[]>> second = waiting(topic);
                waits(topic, partitions, 1, second);
                CompletableFuture<Producer<byte[]>> third = waiting(topic);
                waits(topic, partitions, 2, third);
                holder.close();
                Producer<byte[]> promoted = second.get(SECONDS_MAX, TimeUnit.SECONDS);
                promoted.send(bytes("second"));
                waits(topic, partitions, 1, third);
                promoted.close();
                Producer<byte[]> last = third.get(SECONDS_MAX, TimeUnit.SECONDS);
                last.send(bytes("third"));
                last.close();
            });
            cases.put("waiting outlives the operation timeout" + kind, () -> {
                String topic = topic(partitions);
                try (PulsarClient hasty = PulsarClient.builder().serviceUrl(serviceUrl)
                        .operationTimeout(4, TimeUnit.SECONDS).build()) {
                    Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive);
                    CompletableFuture<Producer<byte[]>> waiter = hasty.newProducer().topic(topic)
                        .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
                    waits(topic, partitions, 1, waiter);
                    pends(waiter, 6000);
                    holder.close();
                    Producer<byte[]> promoted = waiter.get(SECONDS_MAX, TimeUnit.SECONDS);
                    promoted.send(bytes("mine"));
                    promoted.close();
                }
            });
        }
        cases.put("topic deleted under its producer", () -> {
            String topic = topic(0);
            try (Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive)) {
                holder.send(bytes("before"));
                admin.topics().delete(topic, true);
                holder.send(bytes("made again"));
            }
        });
        cases.put("topic deleted under its producer partitioned", () -> {
            String topic = topic(3);
            try (Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive)) {
                holder.send(bytes("before"));
                admin.topics().deletePartitionedTopic(topic, true);
                holder.send(bytes("made again, as Pulsar 4.0.7 does"));
            }
        });
        for (ProducerAccessMode mode : new ProducerAccessMode[] {
                ProducerAccessMode.Exclusive, ProducerAccessMode.WaitForExclusive}) {
            cases.put("added partitions " + mode, () -> {
                String topic = topic(2);
                try (Producer<byte[]> holder = client.newProducer().topic(topic).accessMode(mode)
                        .autoUpdatePartitions(true)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
                    check(holder.getNumOfPartitions() == 2, "two at first");
                    for (int count : new int[] {3, 4}) {
                        admin.topics().updatePartitionedTopic(topic, count);
                        eventually(() -> holder.getNumOfPartitions() == count, "partition " + count);
                    }
                    for (int n = 0; n < 8; n++) {
                        holder.send(bytes("message " + n));
                    }
                    refused(PulsarClientException.ProducerFencedException.class,
                        () -> producer(topic + "-partition-3", ProducerAccessMode.Exclusive));
                }
            });
        }
    }

    private void simple(String topic, int partitions) throws Exception {
        Producer<byte[]> first = producer(topic, ProducerAccessMode.Exclusive);
        refused(PulsarClientException.ProducerFencedException.class,
            () -> producer(topic, ProducerAccessMode.Exclusive));
        refused(PulsarClientException.ProducerBusyException.class,
            () -> producer(topic, ProducerAccessMode.Shared));
        first.close();
        Producer<byte[]> second = producer(topic, ProducerAccessMode.Exclusive);
        Producer<byte[]> third = producer(topic, ProducerAccessMode.ExclusiveWithFencing);
        refused(PulsarClientException.ProducerFencedException.class, () -> second.send(bytes("late")));
        third.send(bytes("third"));
        third.close();

        Producer<byte[]> fourth = producer(topic, ProducerAccessMode.Exclusive);
        CompletableFuture<Producer<byte[]>> fifth = waiting(topic);
        waits(topic, partitions, 1, fifth);
        fourth.send(bytes("fourth"));
        Producer<byte[]> sixth = producer(topic, ProducerAccessMode.ExclusiveWithFencing);
        try {
            fifth.get(SECONDS_MAX, TimeUnit.SECONDS);
            throw new AssertionError("the waiter was granted");
        } catch (ExecutionException error) {
            check(error.getCause() instanceof PulsarClientException.ProducerFencedException,
                "the waiter got " + error.getCause());
        }
        refused(PulsarClientException.ProducerFencedException.class, () -> fourth.send(bytes("late")));
        sixth.send(bytes("sixth"));
        CompletableFuture<Producer<byte[]>> seventh = waiting(topic);
        waits(topic, partitions, 1, seventh);
        sixth.send(bytes("sixth again"));
        sixth.close();
        Producer<byte[]> last = seventh.get(SECONDS_MAX, TimeUnit.SECONDS);
        last.send(bytes("seventh"));
        last.close();
    }

    // ------------------------------------------------------------------ consumers

    private void consumers() {
        for (SubscriptionType type : new SubscriptionType[] {
                SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Failover}) {
            for (boolean batching : new boolean[] {false, true}) {
                for (int partitions : new int[] {0, 3}) {
                    String name = "consume " + type + (batching ? " batched" : "")
                        + (partitions == 0 ? "" : " partitioned");
                    cases.put(name, () -> publishedIsReceived(type, batching, topic(partitions)));
                }
            }
        }
        cases.put("exclusive consumer is alone", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> one = subscribe(topic, "s")) {
                refused(PulsarClientException.ConsumerBusyException.class,
                    () -> subscribe(topic, "s"));
            }
            subscribe(topic, "s").close();
        });
        cases.put("failover", () -> {
            String topic = topic(0);
            Consumer<byte[]> first = client.newConsumer().topic(topic).subscriptionName("s")
                .consumerName("a").subscriptionType(SubscriptionType.Failover).subscribe();
            List<String> changes = java.util.Collections.synchronizedList(new ArrayList<>());
            try (Consumer<byte[]> second = client.newConsumer().topic(topic).subscriptionName("s")
                    .consumerName("b").subscriptionType(SubscriptionType.Failover)
                    .consumerEventListener(new ConsumerEventListener() {
                        @Override
                        public void becameActive(Consumer<?> consumer, int partition) {
                            changes.add("active");
                        }

                        @Override
                        public void becameInactive(Consumer<?> consumer, int partition) {
                            changes.add("inactive");
                        }
                    }).subscribe()) {
                publish(topic, 5, false);
                first.acknowledge(receive(first));
                receive(first);
                first.close();
                check(text(receive(second)).equals("message 1"), "what was unacknowledged first");
                eventually(() -> !changes.isEmpty() && changes.get(0).equals("inactive")
                    && changes.get(changes.size() - 1).equals("active"), "both events");
            }
        });
        cases.put("the end of a terminated topic", () -> {
            String topic = topic(0);
            publish(topic, 3, false);
            admin.topics().terminateTopic(topic);
            try (Reader<byte[]> reader = client.newReader().topic(topic)
                    .startMessageId(MessageId.earliest).create();
                    Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                        .subscriptionName("s").subscriptionInitialPosition(
                            SubscriptionInitialPosition.Earliest).subscribe()) {
                for (int n = 0; n < 3; n++) {
                    check(!reader.hasReachedEndOfTopic(), "the reader is not at the end");
                    check(!consumer.hasReachedEndOfTopic(), "the consumer is not at the end");
                    reader.readNext(SECONDS_MAX, TimeUnit.SECONDS);
                    consumer.acknowledge(receive(consumer));
                }
                eventually(reader::hasReachedEndOfTopic, "the reader's end");
                eventually(consumer::hasReachedEndOfTopic, "the consumer's end");
            }
        });
        cases.put("acknowledgement receipts", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .isAckReceiptEnabled(true).subscribe()) {
                publish(topic, 20, false);
                for (int n = 0; n < 10; n++) {
                    consumer.acknowledge(receive(consumer));
                }
                for (int n = 10; n < 19; n++) {
                    receive(consumer);
                }
                consumer.acknowledgeCumulative(receive(consumer));
            }
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                check(consumer.receive(300, TimeUnit.MILLISECONDS) == null, "all were acknowledged");
            }
        });
        cases.put("batch index acknowledgement", () -> {
            String topic = topic(0);
            Function<PulsarClient, ConsumerBuilder<byte[]>> builder = from -> from.newConsumer()
                .topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
            Consumer<byte[]> consumer = builder.apply(client).subscribe();
            publish(topic, 10, true);
            Set<String> kept = new TreeSet<>();
            for (int n = 0; n < 10; n++) {
                Message<byte[]> message = receive(consumer);
                if (n % 2 == 0) {
                    consumer.acknowledge(message);
                } else {
                    kept.add(text(message));
                }
            }
            consumer.close();
            try (Consumer<byte[]> again = builder.apply(client).subscribe()) {
                check(textsOf(again, kept.size()).equals(kept), "the unacknowledged messages are delivered again");
            }
        });
        cases.put("chunks", () -> {
            String topic = topic(0);
            byte[] large = new byte[600_000];
            new java.util.Random(1).nextBytes(large);
            try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .enableChunking(true).chunkMaxMessageSize(50_000).create();
                    Consumer<byte[]> consumer = subscribe(topic, "s")) {
                MessageId sent = producer.send(large);
                producer.send(bytes("behind it"));
                Message<byte[]> received = receive(consumer);
                check(Arrays.equals(received.getValue(), large), "the whole");
                check(received.getMessageId().equals(sent), "ids " + received.getMessageId());
                check(text(receive(consumer)).equals("behind it"), "the next");
                consumer.seek(sent);
                check(text(receive(consumer)).equals("behind it"), "after a seek, exclusive");
            }
        });
        cases.put("message larger than the broker takes", () -> {
            try (Producer<byte[]> producer = client.newProducer().topic(topic(0)).create()) {
                refused(PulsarClientException.InvalidMessageException.class,
                    () -> producer.send(new byte[6 * 1024 * 1024]));
                producer.send(new byte[5 * 1024 * 1024 - 20_000]);
            }
        });
        cases.put("negative acknowledgement", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe()) {
                publish(topic, 1, false);
                for (int count = 0; count < 3; count++) {
                    Message<byte[]> message = receive(consumer);
                    check(message.getRedeliveryCount() == count, "count " + count);
                    consumer.negativeAcknowledge(message);
                }
            }
        });
        cases.put("acknowledgement timeout", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared)
                    .ackTimeout(1, TimeUnit.SECONDS).subscribe()) {
                publish(topic, 3, false);
                for (int n = 0; n < 3; n++) {
                    receive(consumer);
                }
                distinct(consumer, 3);
            }
        });
        cases.put("redeliver all, with the consumer's epoch", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                publish(topic, 50, false);
                for (int round = 0; round < 5; round++) {
                    // Receive all messages: this client would pass on one message with the old epoch
                    // if some were still under way.
                    for (int n = 0; n < 50; n++) {
                        String found = text(receive(consumer));
                        check(found.equals("message " + n), "round " + round + ": " + found);
                    }
                    consumer.redeliverUnacknowledgedMessages();
                }
            }
        });
        cases.put("redeliver all in mid-stream, with the consumer's epoch", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                publish(topic, 200, false);
                for (int round = 1; round <= 20; round++) {
                    for (int n = 0; n < round; n++) {
                        String found = text(receive(consumer));
                        check(found.equals("message " + n), "round " + round + ": " + found);
                    }
                    consumer.redeliverUnacknowledgedMessages();
                    String first = text(receive(consumer));
                    if (!first.equals("message 0")) {
                        first = text(receive(consumer)); // the one that slips through
                    }
                    check(first.equals("message 0"), "round " + round + ", first: " + first);
                    for (int n = 1; n < 200; n++) {
                        String found = text(receive(consumer));
                        check(found.equals("message " + n), "round " + round + ": " + found);
                    }
                    consumer.redeliverUnacknowledgedMessages();
                }
                for (int n = 0; n < 200; n++) {
                    Message<byte[]> message = receive(consumer);
                    check(text(message).equals("message " + n), "at last: " + text(message));
                    consumer.acknowledge(message);
                }
            }
        });
        cases.put("dead letters", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> dead = subscribe(topic + "-s-DLQ", "d");
                    Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                        .subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build())
                        .subscribe()) {
                publish(topic, 3, false);
                for (int n = 0; n < 9; n++) {
                    consumer.negativeAcknowledge(receive(consumer));
                }
                distinct(dead, 3);
            }
        });
        cases.put("retries in a topic of their own", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared).enableRetry(true).subscribe()) {
                publish(topic, 2, false);
                consumer.reconsumeLater(receive(consumer), 1, TimeUnit.MILLISECONDS);
                check(textsOf(consumer, 2).equals(Set.of("message 0", "message 1")), "both");
            }
        });
        cases.put("a subscription made for a first producer", () -> {
            String topic = "persistent://public/default/java-" + UUID.randomUUID();
            ProducerBuilder<byte[]> builder = client.newProducer().topic(topic);
            ((org.apache.pulsar.client.impl.ProducerBuilderImpl<byte[]>) builder)
                .initialSubscriptionName("first");
            try (Producer<byte[]> producer = builder.create()) {
                producer.send(bytes("kept"));
            }
            try (Consumer<byte[]> consumer = subscribe(topic, "first")) {
                check(text(receive(consumer)).equals("kept"), "kept for it");
            }
        });
        cases.put("seek by id", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                List<MessageId> ids = publish(topic, 20, false);
                receive(consumer);
                consumer.seek(ids.get(9));
                check(text(receive(consumer)).equals("message 10"), "behind it");
                consumer.seek(MessageId.earliest);
                check(text(receive(consumer)).equals("message 0"), "from the beginning");
                consumer.seek(MessageId.latest);
                check(consumer.receive(300, TimeUnit.MILLISECONDS) == null, "at the end");
            }
        });
        cases.put("seek by id in a batch", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .startMessageIdInclusive().subscribe()) {
                List<MessageId> ids = publish(topic, 10, true);
                receive(consumer);
                consumer.seek(ids.get(5));
                check(text(receive(consumer)).equals("message 5"), "inclusive");
            }
        });
        for (int partitions : new int[] {0, 3}) {
            String kind = partitions == 0 ? "" : " partitioned";
            cases.put("seek by time" + kind, () -> {
                String topic = topic(partitions);
                try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                    publish(topic, 5, false);
                    check(textsOf(consumer, 5).size() == 5, "five");
                    Thread.sleep(20);
                    long middle = System.currentTimeMillis();
                    Thread.sleep(20);
                    publish(topic, 4, false);
                    check(textsOf(consumer, 4).size() == 4, "four");
                    consumer.seek(middle);
                    check(textsOf(consumer, 4).size() == 4, "four again");
                    consumer.seek(0);
                    Set<MessageId> ids = new HashSet<>();
                    for (int n = 0; n < 9; n++) {
                        ids.add(receive(consumer).getMessageId());
                    }
                    check(ids.size() == 9, "all again: " + ids.size());
                }
            });
            cases.put("reader" + kind, () -> {
                String topic = topic(partitions);
                publish(topic, 20, true);
                try (Reader<byte[]> reader = client.newReader().topic(topic)
                        .startMessageId(MessageId.earliest).create()) {
                    Set<String> found = new TreeSet<>();
                    while (reader.hasMessageAvailable()) {
                        found.add(text(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS)));
                    }
                    check(found.size() == 20, found.size() + " found");
                    publish(topic, 1, false);
                    check(reader.hasMessageAvailable(), "one more");
                    reader.seek(MessageId.earliest);
                    check(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS) != null, "after a seek");
                }
                try (Reader<byte[]> reader = client.newReader().topic(topic)
                        .startMessageId(MessageId.latest).create()) {
                    check(!reader.hasMessageAvailable(), "nothing behind the end");
                }
            });
            cases.put("table view" + kind, () -> {
                String topic = topic(partitions);
                try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                    for (int n = 0; n < 20; n++) {
                        producer.newMessage().key("key " + n % 5).value(bytes("value " + n)).send();
                    }
                    try (TableView<byte[]> view = client.newTableView().topic(topic)
                            .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
                        check(view.size() == 5, view.size() + " keys");
                        check(new String(view.get("key 4")).equals("value 19"), "the last value");
                        producer.newMessage().key("key 4").value(null).send();
                        eventually(() -> !view.containsKey("key 4"), "deleted");
                    }
                }
            });
            cases.put("last message ids" + kind, () -> {
                String topic = topic(partitions);
                try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                    check(consumer.getLastMessageIds().size() == Math.max(partitions, 1), "each");
                    List<MessageId> ids = publish(topic, 1, false);
                    check(consumer.getLastMessageIds().stream()
                        .anyMatch(id -> id.compareTo(ids.get(0)) == 0), "the one published");
                }
            });
        }
        cases.put("reader from a message, within a batch", () -> {
            String topic = topic(0);
            List<MessageId> ids = publish(topic, 10, true);
            for (boolean inclusive : new boolean[] {false, true}) {
                ReaderBuilder<byte[]> builder = client.newReader().topic(topic)
                    .startMessageId(ids.get(4));
                if (inclusive) {
                    builder.startMessageIdInclusive();
                }
                try (Reader<byte[]> reader = builder.create()) {
                    String expected = "message " + (inclusive ? 4 : 5);
                    check(text(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS)).equals(expected), expected);
                }
            }
        });
        cases.put("reader from the last message, inclusive", () -> {
            String topic = topic(0);
            publish(topic, 10, true);
            try (Reader<byte[]> reader = client.newReader().topic(topic)
                    .startMessageId(MessageId.latest).startMessageIdInclusive().create()) {
                check(reader.hasMessageAvailable(), "the last one");
                check(text(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS)).equals("message 9"), "it");
                check(!reader.hasMessageAvailable(), "no more");
            }
        });
        cases.put("reader from some time back", () -> {
            String topic = topic(0);
            publish(topic, 5, false);
            try (Reader<byte[]> reader = client.newReader().topic(topic)
                    .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()) {
                check(text(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS)).equals("message 0"), "the first");
            }
        });
        cases.put("pattern subscription", () -> {
            String prefix = "pattern-" + UUID.randomUUID();
            publish("persistent://public/default/" + prefix + "-1", 1, false);
            try (Consumer<byte[]> consumer = client.newConsumer().subscriptionName("s")
                    .topicsPattern("persistent://public/default/" + prefix + "-.*")
                    .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
                receive(consumer);
                publish("persistent://public/default/" + prefix + "-2", 1, false);
                receive(consumer);
            }
        });
        cases.put("several topics", () -> {
            List<String> topics = List.of(topic(0), topic(3));
            try (Consumer<byte[]> consumer = client.newConsumer().topics(topics)
                    .subscriptionName("s").subscribe()) {
                for (String topic : topics) {
                    publish(topic, 3, false);
                }
                for (int n = 0; n < 6; n++) {
                    consumer.acknowledge(receive(consumer));
                }
            }
        });
        cases.put("batch receive and listener", () -> {
            String topic = topic(0);
            CompletableFuture<String> heard = new CompletableFuture<>();
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(10).build())
                        .subscribe();
                    Consumer<byte[]> listener = client.newConsumer().topic(topic)
                        .subscriptionName("l")
                        .messageListener((from, message) -> heard.complete(text(message)))
                        .subscribe()) {
                publish(topic, 10, false);
                Messages<byte[]> messages = consumer.batchReceive();
                check(messages.size() == 10, "ten");
                consumer.acknowledge(messages);
                check(heard.get(SECONDS_MAX, TimeUnit.SECONDS).equals("message 0"), "heard");
            }
        });
        cases.put("what a message carries", () -> {
            String topic = topic(0);
            for (CompressionType compression : CompressionType.values()) {
                for (boolean batching : new boolean[] {false, true}) {
                    try (Consumer<byte[]> consumer = subscribe(topic, "s-" + compression + batching);
                            Producer<byte[]> producer = client.newProducer().topic(topic)
                                .compressionType(compression).enableBatching(batching).create()) {
                        producer.newMessage().key("key").orderingKey(bytes("order")).eventTime(77)
                            .property("colour", "red").value(bytes("value".repeat(1000))).send();
                        producer.newMessage().value(null).send();
                        Message<byte[]> message = receive(consumer);
                        check(message.getKey().equals("key") && message.getEventTime() == 77
                            && message.getProperty("colour").equals("red")
                            && Arrays.equals(message.getOrderingKey(), bytes("order"))
                            && text(message).length() == 5000, "all of " + compression);
                        check(receive(consumer).getValue() == null, "null");
                    }
                }
            }
        });
        cases.put("sequence ids are the producer's", () -> {
            String topic = topic(0);
            try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p")
                    .initialSequenceId(41).create()) {
                producer.send(bytes("x"));
                check(producer.getLastSequenceId() == 42, "is " + producer.getLastSequenceId());
            }
        });
        cases.put("zero queue", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .receiverQueueSize(0).subscribe()) {
                publish(topic, 3, false);
                for (int n = 0; n < 3; n++) {
                    check(text(consumer.receive()).equals("message " + n), "in order");
                }
            }
        });
        cases.put("consumers live through an unload", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .isAckReceiptEnabled(true).subscribe()) {
                publish(topic, 2, false);
                consumer.acknowledge(receive(consumer));
                receive(consumer);
                admin.topics().unload(topic);
                check(text(receive(consumer)).equals("message 1"), "the unacknowledged one again");
                publish(topic, 1, false);
                check(text(receive(consumer)).equals("message 0"), "a new one");
            }
        });
        cases.put("unsubscribe", () -> {
            String topic = topic(0);
            Consumer<byte[]> consumer = subscribe(topic, "s");
            check(admin.topics().getSubscriptions(topic).equals(List.of("s")), "there");
            consumer.unsubscribe();
            check(admin.topics().getSubscriptions(topic).isEmpty(), "gone");
        });
    }

    private void publishedIsReceived(SubscriptionType type, boolean batching, String topic)
            throws Exception {
        try (Consumer<byte[]> one = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(type).isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe()) {
            publish(topic, 60, batching);
            Set<String> found = new TreeSet<>();
            for (int n = 0; n < 60; n++) {
                Message<byte[]> message = receive(one);
                found.add(text(message));
                one.acknowledge(message);
            }
            check(found.size() == 60, found.size() + " of 60");
        }
        try (Consumer<byte[]> again = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(type).subscribe()) {
            check(again.receive(200, TimeUnit.MILLISECONDS) == null, "all were acknowledged");
        }
    }

    // ------------------------------------------------------------------ administration

    private void administration() {
        cases.put("partitions for a topic", () -> {
            check(client.getPartitionsForTopic(topic(3)).get().size() == 3, "three");
            check(client.getPartitionsForTopic(topic(0)).get().size() == 1, "one");
            String absent = "persistent://public/default/absent-" + UUID.randomUUID();
            try {
                client.getPartitionsForTopic(absent, false).get();
                throw new AssertionError("there is no such topic");
            } catch (ExecutionException error) {
                check(error.getCause() instanceof PulsarClientException.TopicDoesNotExistException
                    || error.getCause() instanceof PulsarClientException.NotFoundException,
                    "got " + error.getCause());
            }
        });
        cases.put("clusters, tenants and namespaces", () -> {
            check(!admin.clusters().getClusters().isEmpty(), "a cluster");
            check(admin.tenants().getTenants().contains("public"), "a tenant");
            String namespace = "public/made-" + UUID.randomUUID();
            admin.namespaces().createNamespace(namespace);
            check(admin.namespaces().getNamespaces("public").contains(namespace), "made");
            String topic = "persistent://" + namespace + "/t";
            publish(topic, 1, false);
            check(admin.namespaces().getTopics(namespace).equals(List.of(topic)), "its topics");
            admin.namespaces().deleteNamespace(namespace, true);
            check(!admin.namespaces().getNamespaces("public").contains(namespace), "gone");
        });
        cases.put("topics made, listed and deleted", () -> {
            String topic = "persistent://public/default/made-" + UUID.randomUUID();
            admin.topics().createNonPartitionedTopic(topic);
            check(admin.topics().getList("public/default").contains(topic), "listed");
            conflicts(() -> admin.topics().createNonPartitionedTopic(topic));
            admin.topics().delete(topic);
            check(!admin.topics().getList("public/default").contains(topic), "gone");
            String many = topic + "-many";
            admin.topics().createPartitionedTopic(many, 3);
            conflicts(() -> admin.topics().createPartitionedTopic(many, 3));
            check(admin.topics().getPartitionedTopicList("public/default").contains(many), "listed");
            check(admin.topics().getPartitionedTopicMetadata(many).partitions == 3, "three");
            admin.topics().updatePartitionedTopic(many, 5);
            check(admin.topics().getPartitionedTopicMetadata(many).partitions == 5, "five");
            admin.topics().deletePartitionedTopic(many);
            check(!admin.topics().getPartitionedTopicList("public/default").contains(many), "gone");
        });
        cases.put("statistics", () -> {
            String topic = topic(0);
            try (Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive);
                    Consumer<byte[]> consumer = subscribe(topic, "s")) {
                CompletableFuture<Producer<byte[]>> waiter = waiting(topic);
                waits(topic, 0, 1, waiter);
                holder.send(bytes("one"));
                var stats = admin.topics().getStats(topic);
                check(stats.getPublishers().size() == 1, "one writes");
                check(stats.getPublishers().get(0).getProducerName()
                    .equals(holder.getProducerName()), "its name");
                check(stats.getPublishers().get(0).getAccessMode()
                    == ProducerAccessMode.Exclusive, "its mode");
                check(stats.getWaitingPublishers() == 1, "one waits");
                check(stats.getTopicEpoch() != null, "an epoch");
                check(stats.getSubscriptions().get("s").getConsumers().size() == 1, "one reads");
                check(stats.getSubscriptions().get("s").getMsgBacklog() == 1, "one to read");
                waiter.cancel(true);
            }
        });
        cases.put("statistics partitioned", () -> {
            String topic = topic(3);
            try (Producer<byte[]> holder = producer(topic, ProducerAccessMode.Exclusive);
                    Consumer<byte[]> consumer = subscribe(topic, "s")) {
                holder.send(bytes("one"));
                var stats = admin.topics().getPartitionedStats(topic, true);
                check(stats.getPartitions().size() == 3, "three partitions");
                check(stats.getSubscriptions().containsKey("s"), "a subscription");
            }
        });
        cases.put("subscriptions made, moved and deleted", () -> {
            String topic = topic(0);
            publish(topic, 10, false);
            admin.topics().createSubscription(topic, "s", MessageId.earliest);
            check(admin.topics().getSubscriptions(topic).equals(List.of("s")), "made");
            conflicts(() -> admin.topics().createSubscription(topic, "s", MessageId.earliest));
            admin.topics().skipMessages(topic, "s", 4);
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                check(text(receive(consumer)).equals("message 4"), "four were skipped");
            }
            admin.topics().skipAllMessages(topic, "s");
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                check(consumer.receive(300, TimeUnit.MILLISECONDS) == null, "all were skipped");
            }
            admin.topics().resetCursor(topic, "s", 0);
            try (Consumer<byte[]> consumer = subscribe(topic, "s")) {
                check(text(receive(consumer)).equals("message 0"), "moved to the beginning");
            }
            MessageId last = admin.topics().getLastMessageId(topic);
            admin.topics().resetCursor(topic, "s", last);
            admin.topics().deleteSubscription(topic, "s");
            check(admin.topics().getSubscriptions(topic).isEmpty(), "gone");
        });
        cases.put("lookups", () -> {
            check(admin.lookups().lookupTopic(topic(0)).equals(serviceUrl), "the broker");
            check(admin.lookups().lookupPartitionedTopic(topic(3)).size() == 3, "each partition");
        });
        cases.put("http service url", () -> {
            String topic = topic(3);
            try (PulsarClient over = PulsarClient.builder()
                        .serviceUrl(admin.getServiceUrl()).build();
                    Producer<byte[]> producer = over.newProducer().topic(topic).create();
                    Consumer<byte[]> consumer = over.newConsumer().subscriptionName("s")
                        .topicsPattern(topic.replaceAll("-[^-]*$", "-.*"))
                        .subscribe()) {
                for (int n = 0; n < 3; n++) {
                    producer.send(bytes("x"));
                    receive(consumer);
                }
            }
        });
    }

    // ------------------------------------------------------------------ clear refusals

    private void refusals() {
        cases.put("no such namespace", () -> refused(
            PulsarClientException.TopicDoesNotExistException.class,
            () -> producer("persistent://nobody/nowhere/t", ProducerAccessMode.Shared)));
        cases.put("no keys of messages are shared", () -> {
            String topic = topic(0);
            refused(PulsarClientException.class, () -> client.newConsumer().topic(topic)
                .subscriptionName("s").subscriptionType(SubscriptionType.Key_Shared).subscribe());
            publish(topic, 1, false);
        });
        cases.put("no transactions", () -> {
            refused(PulsarClientException.class, () -> PulsarClient.builder().serviceUrl(serviceUrl)
                .enableTransaction(true).operationTimeout(3, TimeUnit.SECONDS).build());
        });
        cases.put("schemas without a definition", () -> {
            String topic = topic(0);
            try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic)
                        .subscriptionName("s").subscribe();
                    Consumer<?> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                        .subscriptionName("any").subscribe();
                    Producer<String> producer = client.newProducer(Schema.STRING).topic(topic)
                        .create()) {
                producer.send("text");
                check(consumer.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue().equals("text"), "text");
                check(any.receive(SECONDS_MAX, TimeUnit.SECONDS) != null, "whatever it is");
            }
        });
        cases.put("delayed delivery", () -> {
            String topic = topic(0);
            try (Consumer<byte[]> consumer = subscribe(topic, "s");
                    Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                producer.newMessage().deliverAfter(300, TimeUnit.MILLISECONDS).value(bytes("x"))
                    .send();
                receive(consumer);
            }
        });
    }

    // ------------------------------------------------------------------ schemas, compaction

    public static class Point {
        public int x;
        public int y;

        public Point() {
        }

        Point(int x, int y) {
            this.x = x;
            this.y = y;
        }
    }

    public static class Other {
        public int z;
    }

    private void schemas() {
        for (Schema<Point> schema : List.of(Schema.JSON(Point.class), Schema.AVRO(Point.class))) {
            String kind = schema.getSchemaInfo().getType().name();
            cases.put("records, " + kind, () -> {
                String topic = topic(0);
                try (Consumer<Point> consumer = client.newConsumer(schema).topic(topic)
                            .subscriptionName("s").subscribe();
                        Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME())
                            .topic(topic).subscriptionName("any").subscribe();
                        Producer<Point> producer = client.newProducer(schema).topic(topic)
                            .create()) {
                    producer.send(new Point(3, 4));
                    Point point = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue();
                    check(point.x == 3 && point.y == 4, "the record");
                    Message<GenericRecord> generic = any.receive(SECONDS_MAX, TimeUnit.SECONDS);
                    check(generic.getValue().getField("y").equals(4), "the record, whatever it is");
                    check(admin.schemas().getSchemaInfo(topic).getType()
                        == schema.getSchemaInfo().getType(), "the type");
                    check(admin.schemas().getAllSchemas(topic).size() == 1, "one version");
                }
                refused(PulsarClientException.IncompatibleSchemaException.class, () -> client
                    .newProducer(Schema.STRING).topic(topic).create());
                refused(PulsarClientException.IncompatibleSchemaException.class, () -> client
                    .newConsumer(Schema.INT32).topic(topic).subscriptionName("a").subscribe());
            });
        }
        cases.put("schemas of one producer", () -> {
            String topic = topic(0);
            admin.topicPolicies().setSchemaCompatibilityStrategy(topic,
                SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE);
            try (Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME())
                        .topic(topic).subscriptionName("any").subscribe();
                    Producer<byte[]> producer = client.newProducer(Schema.AUTO_PRODUCE_BYTES())
                        .topic(topic).create()) {
                producer.newMessage(Schema.AVRO(Point.class)).value(new Point(1, 2)).send();
                producer.newMessage(Schema.AVRO(Other.class)).value(new Other()).send();
                check(any.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue().getField("x").equals(1), "x");
                check(any.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue().getField("z").equals(0), "z");
                check(admin.schemas().getAllSchemas(topic).size() == 2, "two versions");
            }
        });
        cases.put("keys and values with schemas", () -> {
            String topic = topic(0);
            Schema<KeyValue<String, Point>> schema = Schema.KeyValue(Schema.STRING,
                Schema.JSON(Point.class), KeyValueEncodingType.SEPARATED);
            try (Consumer<KeyValue<String, Point>> consumer = client.newConsumer(schema)
                        .topic(topic).subscriptionName("s").subscribe();
                    Producer<KeyValue<String, Point>> producer = client.newProducer(schema)
                        .topic(topic).create()) {
                producer.send(new KeyValue<>("key", new Point(5, 6)));
                check(consumer.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue().getValue().y == 6, "y");
            }
        });
        cases.put("schemas are deleted, versions go on", () -> {
            String topic = topic(0);
            client.newProducer(Schema.AVRO(Point.class)).topic(topic).create().close();
            admin.schemas().deleteSchema(topic);
            client.newProducer(Schema.AVRO(Other.class)).topic(topic).create().close();
            check(admin.schemas().getSchemaInfoWithVersion(topic).getVersion() == 2, "version");
        });
    }

    private static <T> T asked(Callable<T> question) {
        try {
            return question.call();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private Producer<Point> leader(String topic, Map<String, Point> state) throws Exception {
        Producer<Point> leader = client.newProducer(Schema.JSON(Point.class)).topic(topic)
            .accessMode(ProducerAccessMode.WaitForExclusive).create();
        try (Reader<Point> reader = client.newReader(Schema.JSON(Point.class)).topic(topic)
                .startMessageId(MessageId.earliest).readCompacted(true).create()) {
            while (reader.hasMessageAvailable()) {
                Message<Point> message = reader.readNext(SECONDS_MAX, TimeUnit.SECONDS);
                state.put(message.getKey(), message.getValue());
            }
        }
        return leader;
    }

    private void compaction() {
        cases.put("PIP-68's leader replays the compacted topic and then writes ahead", () -> {
            String topic = topic(0);
            Map<String, Point> first = new LinkedHashMap<>();
            Map<String, Point> second = new LinkedHashMap<>();
            Producer<Point> leader = leader(topic, first);
            check(first.isEmpty(), "nothing yet");
            CompletableFuture<Producer<Point>> waiting = CompletableFuture.supplyAsync(
                () -> asked(() -> leader(topic, second)));
            for (int i = 0; i < 30; i++) {
                leader.newMessage().key("key-" + i % 3).value(new Point(i, i)).send();
            }
            admin.topics().triggerCompaction(topic);
            eventually(() -> asked(() -> admin.topics().compactionStatus(topic).status)
                == LongRunningProcessStatus.Status.SUCCESS, "compacted");
            leader.newMessage().key("key-0").value(new Point(30, 30)).send();
            check(!waiting.isDone(), "one leader at a time");
            leader.close();
            try (Producer<Point> successor = waiting.get(SECONDS_MAX, TimeUnit.SECONDS)) {
                check(second.size() == 3 && second.get("key-0").x == 30
                    && second.get("key-1").x == 28 && second.get("key-2").x == 29, "the state");
                successor.newMessage().key("key-1").value(new Point(31, 31)).send();
            }
        });
        for (boolean batched : List.of(false, true)) {
            cases.put("compaction, batched " + batched, () -> {
                String topic = topic(0);
                try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic)
                        .enableBatching(batched).create()) {
                    for (int i = 0; i < 20; i++) {
                        producer.newMessage().key("key-" + i % 4).value("value-" + i).sendAsync();
                    }
                    producer.newMessage().key("key-3").value(null).sendAsync();
                    producer.flush();
                    admin.topics().triggerCompaction(topic);
                    eventually(() -> asked(() -> admin.topics().compactionStatus(topic).status)
                        == LongRunningProcessStatus.Status.SUCCESS, "compacted");
                    List<String> found = new ArrayList<>();
                    try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic)
                            .startMessageId(MessageId.earliest).readCompacted(true).create()) {
                        while (reader.hasMessageAvailable()) {
                            found.add(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getValue());
                        }
                        check(found.equals(List.of("value-16", "value-17", "value-18")),
                            "the view: " + found);
                        producer.newMessage().key("key-0").value("behind").send();
                        check(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getValue().equals("behind"),
                            "the log behind it");
                    }
                }
                try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic)
                        .subscriptionName("s").readCompacted(true)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
                    for (String value : List.of("value-16", "value-17", "value-18", "behind")) {
                        Message<String> message = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS);
                        check(message.getValue().equals(value), value);
                        // If a batch lacks messages, this client never acknowledges the others one by one.
                        if (batched) {
                            consumer.acknowledgeCumulative(message);
                        } else {
                            consumer.acknowledge(message);
                        }
                    }
                }
                eventually(() -> asked(() -> admin.topics().getStats(topic).getSubscriptions()
                    .get("s").getMsgBacklog()) == 0, "all acknowledged");
                try (TableView<String> view = client.newTableView(Schema.STRING).topic(topic)
                        .create()) {
                    check(view.size() == 3 && view.get("key-0").equals("behind"), "the table");
                }
            });
        }
    }

    // ------------------------------------------------------------------ steps of the cases

    private String topic(int partitions) throws PulsarAdminException {
        String topic = "persistent://public/default/java-" + UUID.randomUUID();
        if (partitions > 0) {
            admin.topics().createPartitionedTopic(topic, partitions);
        } else {
            admin.topics().createNonPartitionedTopic(topic);
        }
        return topic;
    }

    private PulsarClient connect() throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(serviceUrl)
            .operationTimeout(SECONDS_MAX, TimeUnit.SECONDS).build();
    }

    private Producer<byte[]> producer(String topic, ProducerAccessMode mode)
            throws PulsarClientException {
        return client.newProducer().topic(topic).accessMode(mode).create();
    }

    private CompletableFuture<Producer<byte[]>> waiting(String topic) {
        return client.newProducer().topic(topic).accessMode(ProducerAccessMode.WaitForExclusive)
            .createAsync();
    }

    private Consumer<byte[]> subscribe(String topic, String name) throws PulsarClientException {
        return client.newConsumer().topic(topic).subscriptionName(name).subscribe();
    }

    private List<MessageId> publish(String topic, int count, boolean batching) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(batching)
                .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create()) {
            for (int n = 0; n < count; n++) {
                sent.add(producer.sendAsync(bytes("message " + n)));
            }
            producer.flush();
        }
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) {
            ids.add(each.get(SECONDS_MAX, TimeUnit.SECONDS));
        }
        return ids;
    }

    /** The topic, or its first partition, which this client requests first. */
    private static String first(String topic, int partitions) {
        return partitions == 0 ? topic : topic + "-partition-0";
    }

    private long epoch(String topic, int partitions) throws PulsarAdminException {
        return admin.topics().getStats(first(topic, partitions)).getTopicEpoch();
    }

    private static Message<byte[]> receive(Consumer<byte[]> consumer) throws PulsarClientException {
        Message<byte[]> message = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS);
        check(message != null, "nothing was received in " + SECONDS_MAX + " s");
        return message;
    }

    /** The first {@code count} different texts, and those that arrive soon after them. */
    private static Set<String> textsOf(Consumer<byte[]> consumer, int count)
            throws PulsarClientException {
        Set<String> found = distinct(consumer, count);
        for (;;) {
            Message<byte[]> more = consumer.receive(NOTHING_MILLISECONDS, TimeUnit.MILLISECONDS);
            if (more == null) {
                return found;
            }
            found.add(text(more));
        }
    }

    /** The first {@code count} different texts; repeated ones do not count. */
    private static Set<String> distinct(Consumer<byte[]> consumer, int count)
            throws PulsarClientException {
        Set<String> found = new TreeSet<>();
        while (found.size() < count) {
            found.add(text(receive(consumer)));
        }
        return found;
    }

    /** Waits until {@code count} producers are queued, and checks that {@code future} is not granted. */
    private void waits(String topic, int partitions, int count, CompletableFuture<?> future)
            throws Exception {
        String first = first(topic, partitions);
        eventually(() -> asked(() -> admin.topics().getStats(first).getWaitingPublishers()) == count,
            count + " waiting at " + first);
        check(!future.isDone(), "the producer did not wait");
    }

    private static void pends(CompletableFuture<?> future, long milliseconds) throws Exception {
        try {
            future.get(milliseconds, TimeUnit.MILLISECONDS);
            throw new AssertionError("the producer did not wait");
        } catch (TimeoutException expected) {
            return;
        }
    }

    private static void refused(Class<? extends Exception> kind, Case work) throws Exception {
        try {
            work.run();
        } catch (Exception error) {
            check(kind.isInstance(error), "refused with another error: " + error);
            return;
        }
        throw new AssertionError("not refused with " + kind.getSimpleName());
    }

    private static void conflicts(Case work) throws Exception {
        refused(PulsarAdminException.ConflictException.class, work);
    }

    private static void eventually(java.util.function.BooleanSupplier holds, String what)
            throws InterruptedException {
        long end = System.nanoTime() + Duration.ofSeconds(SECONDS_MAX).toNanos();
        while (!holds.getAsBoolean()) {
            check(System.nanoTime() < end, "not in time: " + what);
            Thread.sleep(20);
        }
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getValue(), StandardCharsets.UTF_8);
    }
}
