import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Prints the partition to which the Java client sends each key, by its default and by Murmur3_32Hash:
 * {@code java Routing.java SERVICE_URL TOPIC KEY...}.
 */
public final class Routing {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(arguments[0])
                .operationTimeout(20, TimeUnit.SECONDS)
                .build()) {
            for (HashingScheme scheme : new HashingScheme[] {null, HashingScheme.Murmur3_32Hash}) {
                ProducerBuilder<byte[]> builder = client.newProducer().topic(arguments[1]);
                if (scheme != null) {
                    builder = builder.hashingScheme(scheme);
                }
                try (Producer<byte[]> producer = builder.create()) {
                    for (int i = 2; i < arguments.length; i++) {
                        MessageIdAdv id = (MessageIdAdv)
                                producer.newMessage().key(arguments[i]).value(new byte[] {1}).send();
                        System.out.println(
                                (scheme == null ? "default " : "murmur ") + id.getPartitionIndex());
                    }
                }
            }
        }
        System.exit(0);
    }
}
