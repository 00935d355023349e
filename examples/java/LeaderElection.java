import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/**
 * Elect a leader over one topic with Apache Pulsar's own, unmodified Java client.
 *
 * <p>Start it twice. One leads and publishes a line each second, the other waits. Kill or freeze the
 * leader, and the other one leads. Continue the frozen one, and all its sends fail.
 *
 * <pre>java -cp 'pulsar-client/*' examples/java/LeaderElection.java A pulsar://127.0.0.1:6650 orders</pre>
 */
public final class LeaderElection {
    private LeaderElection() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments.length > 0 ? arguments[0] : "java-" + ProcessHandle.current().pid();
        String url = arguments.length > 1 ? arguments[1] : "pulsar://127.0.0.1:6650";
        String topic = arguments.length > 2 ? arguments[2] : "orders";
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
            while (true) {
                System.out.println(name + ": waiting to lead " + topic);
                try (Producer<byte[]> producer = client.newProducer()
                        .topic(topic)
                        .accessMode(ProducerAccessMode.WaitForExclusive)
                        .property("onewriter.queue-priority", "0")
                        .enableBatching(false)
                        .create()) {
                    lead(name, producer);
                } catch (PulsarClientException.ProducerFencedException fenced) {
                    // Definite for every send that began after the fence. Queue for another turn.
                    System.out.println(name + ": fenced, another instance leads");
                }
            }
        }
    }

    private static void lead(String name, Producer<byte[]> producer) throws Exception {
        System.out.println(name + ": leading");
        for (int count = 1; ; count++) {
            String line = name + " " + count;
            MessageId id = producer.send(line.getBytes(StandardCharsets.UTF_8));
            System.out.println(name + ": wrote " + count + " at " + id);
            TimeUnit.SECONDS.sleep(1);
        }
    }
}
