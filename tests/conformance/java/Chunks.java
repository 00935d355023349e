import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Reads messages that another client sent in chunks, and sends one. Arguments: SERVICE_URL FROM_TOPIC COUNT TO_TOPIC.
 *
 * <p>Prints a line for each, "read" or "sent" with the SHA-256 of its content.
 */
public class Chunks {
    private static final int SECONDS = 60;
    private static final int LARGE_BYTES = 600_000;
    private static final int CHUNK_BYTES = 50_000;

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            try (Consumer<byte[]> consumer = client.newConsumer().topic(args[1]).subscriptionName("java")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
                for (int number = 0; number < count; number++) {
                    Message<byte[]> message = consumer.receive(SECONDS, TimeUnit.SECONDS);
                    System.out.println("read " + digest(message.getValue()));
                    consumer.acknowledge(message);
                }
            }
            byte[] large = new byte[LARGE_BYTES];
            new Random(1).nextBytes(large);
            try (Producer<byte[]> producer = client.newProducer().topic(args[3]).enableBatching(false)
                    .enableChunking(true).chunkMaxMessageSize(CHUNK_BYTES).create()) {
                producer.send(large);
            }
            System.out.println("sent " + digest(large));
        }
    }

    private static String digest(byte[] content) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content));
    }
}
