import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Writes each line of the standard input to a topic as its exclusive producer, and prints "sent LINE" after its receipt.
 *
 * <p>Arguments: SERVICE_URL TOPIC. All settings are the client's defaults, but a send has no time limit.
 * tests/conformance/go/main.go does the same in Go.
 */
public final class LineWriter {
    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build();
                Producer<byte[]> producer = client.newProducer()
                    .topic(words[1])
                    .accessMode(ProducerAccessMode.Exclusive)
                    .sendTimeout(0, TimeUnit.SECONDS)
                    .create()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                producer.send(line.getBytes(StandardCharsets.UTF_8));
                System.out.println("sent " + line);
            }
        }
    }
}
