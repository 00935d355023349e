import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.MessageIdImpl;

/**
 * Checks tokens, TLS and authorization with the stock Java client and its default settings.
 *
 * <p>Arguments: SERVICE_URL CA_FILE TOPIC WRITER_TOKEN READER_TOKEN STRANGER_TOKEN RENEWED_FILE SECONDS. It prints a
 * line for each case, "ok NAME" or "FAIL NAME why"; exit code 1 when one failed. tests/conformance/go/main.go does the
 * same in Go.
 */
public final class ClientSecured {
    /** The steps of a case; it fails if they throw. */
    interface Case {
        void run() throws Exception;
    }

    /** A message of the typed topic. */
    public static class Order {
        public int number;
    }

    /** A message with an incompatible schema. */
    public static class Misfit {
        public String number;
        public int more;
    }

    private static final int SECONDS_MAX = 60;
    private static final int MESSAGES = 5;

    private final String url;
    private final String authorities;
    private final String topic;

    private ClientSecured(String[] words) {
        url = words[0];
        authorities = words[1];
        topic = words[2];
    }

    public static void main(String[] words) throws Exception {
        ClientSecured here = new ClientSecured(words);
        Authentication writer = AuthenticationFactory.token(words[3]);
        Authentication reader = AuthenticationFactory.token(words[4]);
        Authentication unauthorized = AuthenticationFactory.token(words[5]);
        Authentication renewed = AuthenticationFactory.token(() -> content(words[6]));
        int seconds = Integer.parseInt(words[7]);
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("access modes", () -> here.accessModes(writer));
        cases.put("subscriptions", () -> here.subscriptions(reader));
        cases.put("reader and seek", () -> here.readerAndSeek(reader));
        cases.put("schemas", () -> here.schemas(writer, reader));
        cases.put("a renewed token", () -> here.renewed(renewed, seconds));
        cases.put("refusals", () -> here.refusals(unauthorized, reader));
        boolean allPassed = true;
        for (Map.Entry<String, Case> each : cases.entrySet()) {
            try {
                each.getValue().run();
                System.out.println("ok " + each.getKey());
            } catch (Throwable error) {
                allPassed = false;
                System.out.println("FAIL " + each.getKey() + " " + String.valueOf(error).replace('\n', ' '));
            }
        }
        System.exit(allPassed ? 0 : 1);
    }

    private PulsarClient connect(Authentication who) throws Exception {
        return PulsarClient.builder().serviceUrl(url).tlsTrustCertsFilePath(authorities).authentication(who).build();
    }

    private Producer<byte[]> producer(PulsarClient client, ProducerAccessMode mode) throws Exception {
        return client.newProducer().topic(topic).accessMode(mode).create();
    }

    private void accessModes(Authentication writer) throws Exception {
        try (PulsarClient client = connect(writer)) {
            try (Producer<byte[]> shared = producer(client, ProducerAccessMode.Shared)) {
                for (int number = 0; number < MESSAGES; number++) {
                    shared.send(bytes(String.valueOf(number)));
                }
            }
            Producer<byte[]> holder = producer(client, ProducerAccessMode.Exclusive);
            refused(PulsarClientException.ProducerFencedException.class,
                () -> producer(client, ProducerAccessMode.Exclusive));
            holder.send(bytes("exclusive"));
            CompletableFuture<Producer<byte[]>> waiter = client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
            Thread.sleep(500);
            check(!waiter.isDone(), "it did not wait");
            holder.close();
            Producer<byte[]> waited = waiter.get(SECONDS_MAX, TimeUnit.SECONDS);
            waited.send(bytes("waited"));
            try (Producer<byte[]> deposing = producer(client, ProducerAccessMode.ExclusiveWithFencing)) {
                deposing.send(bytes("deposed"));
                refused(PulsarClientException.class, () -> waited.send(bytes("too late")));
            }
        }
    }

    private void subscriptions(Authentication reader) throws Exception {
        SubscriptionType[] types = {SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Failover};
        try (PulsarClient client = connect(reader)) {
            for (SubscriptionType type : types) {
                try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("as-" + type)
                        .subscriptionType(type).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
                    for (int number = 0; number < MESSAGES; number++) {
                        consumer.acknowledge(received(consumer));
                    }
                    consumer.seek(MessageId.earliest);
                    check("0".equals(text(received(consumer))), "a seek does not lead to the first message");
                    consumer.unsubscribe();
                }
            }
        }
    }

    private void readerAndSeek(Authentication who) throws Exception {
        try (PulsarClient client = connect(who);
                Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            for (int round = 0; round < 2; round++) {
                check(reader.hasMessageAvailable(), "nothing to read");
                check("0".equals(text(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS))), "not the first message");
                reader.seek(MessageId.earliest);
            }
        }
    }

    private void schemas(Authentication writer, Authentication who) throws Exception {
        String typed = topic + "-schema";
        try (PulsarClient client = connect(writer); PulsarClient readers = connect(who)) {
            try (Producer<Order> producer = client.newProducer(Schema.AVRO(Order.class)).topic(typed).create()) {
                Order order = new Order();
                order.number = 7;
                producer.send(order);
            }
            refused(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.AVRO(Misfit.class)).topic(typed).create());
            try (Consumer<Order> consumer = readers.newConsumer(Schema.AVRO(Order.class)).topic(typed)
                    .subscriptionName("typed").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe()) {
                check(received(consumer).getValue().number == 7, "another value");
            }
        }
    }

    /** Publishes as one holder for longer than the lifetime of each token. */
    private void renewed(Authentication who, int seconds) throws Exception {
        Set<Long> ledgers = new HashSet<>();
        try (PulsarClient client = connect(who);
                Producer<byte[]> producer = producer(client, ProducerAccessMode.Exclusive)) {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (System.nanoTime() < end) {
                ledgers.add(((MessageIdImpl) producer.send(bytes("still me"))).getLedgerId());
                Thread.sleep(100);
            }
        }
        check(ledgers.size() == 1, "it was fenced meanwhile: ledgers " + ledgers);
    }

    private void refusals(Authentication unauthorized, Authentication reader) throws Exception {
        Class<? extends Exception> expected = PulsarClientException.AuthorizationException.class;
        try (PulsarClient client = connect(unauthorized)) {
            refused(expected, () -> producer(client, ProducerAccessMode.Shared));
            refused(expected, () -> client.newConsumer().topic(topic).subscriptionName("foreign").subscribe());
            refused(expected, () -> client.newReader().topic(topic).startMessageId(MessageId.earliest).create());
        }
        try (PulsarClient client = connect(reader)) {
            refused(expected, () -> producer(client, ProducerAccessMode.Shared));
        }
    }

    private static void refused(Class<? extends Exception> expected, Callable<?> what) throws Exception {
        try {
            what.call();
        } catch (Exception error) {
            check(expected.isInstance(error), "another refusal: " + error);
            return;
        }
        throw new IllegalStateException("it was not refused");
    }

    private static <T> Message<T> received(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS);
        check(message != null, "nothing was delivered");
        return message;
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static String content(String file) {
        try {
            return Files.readString(Path.of(file)).strip();
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getValue(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
