// One Flink SQL query, run several times in one JVM, measured each time.
//
//   java ... Queries SETUP.sql QUERY.sql PARALLELISM RUNS CHECKPOINT_DIR
//
// SETUP.sql holds CREATE statements, QUERY.sql one INSERT; both end their statements with `;` and
// have comments only on lines of their own. Prints one line of JSON for each run: wall and CPU
// seconds of the INSERT alone. The first run warms the JVM up and is not meant to be counted.
// The settings are those of the Nexmark runs: mini-batches, heap state, a checkpoint every 10 s.
// With FLINK_REMOTE=host:port it runs on that cluster instead, which has its own settings; no mini-batches.

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public final class Queries {
  private static final OperatingSystemMXBean PROCESS =
      (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

  public static void main(String[] args) throws Exception {
    List<String> setup = statements(args[0]);
    String insert = statements(args[1]).get(0);
    int runs = Integer.parseInt(args[3]);
    for (int run = 0; run < runs; run++) {
      TableEnvironment tables = TableEnvironment.create(settings(args[2], args[4]));
      for (String create : setup) {
        tables.executeSql(create);
      }
      long wall = System.nanoTime();
      long cpu = PROCESS.getProcessCpuTime();
      tables.executeSql(insert).await();
      System.out.printf(
          "{\"run\": %d, \"wall_s\": %.4f, \"cpu_s\": %.4f}%n",
          run, (System.nanoTime() - wall) / 1e9, (PROCESS.getProcessCpuTime() - cpu) / 1e9);
    }
    // The embedded cluster leaves threads behind.
    System.exit(0);
  }

  private static EnvironmentSettings settings(String parallelism, String checkpoints) {
    Configuration c = new Configuration();
    String remote = System.getenv("FLINK_REMOTE");
    if (remote != null) {
      c.setString("execution.target", "remote");
      c.setString("rest.address", remote.split(":")[0]);
      c.setString("rest.port", remote.split(":")[1]);
      c.setString("parallelism.default", parallelism);
      return EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(c).build();
    }
    c.setString("parallelism.default", parallelism);
    c.setString("taskmanager.numberOfTaskSlots", parallelism);
    c.setString("taskmanager.memory.managed.size", "1g");
    c.setString("taskmanager.memory.network.min", "128m");
    c.setString("taskmanager.memory.network.max", "128m");
    c.setString("state.backend.type", "hashmap");
    c.setString("execution.checkpointing.interval", "10 s");
    c.setString("execution.checkpointing.dir", "file://" + checkpoints);
    c.setString("table.exec.mini-batch.enabled", "true");
    c.setString("table.exec.mini-batch.allow-latency", "2 s");
    c.setString("table.exec.mini-batch.size", "50000");
    c.setString("table.optimizer.distinct-agg.split.enabled", "true");
    return EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(c).build();
  }

  private static List<String> statements(String path) throws IOException {
    String text =
        Files.readAllLines(Path.of(path)).stream()
            .filter(line -> !line.stripLeading().startsWith("--"))
            .collect(Collectors.joining("\n"));
    List<String> statements = new ArrayList<>();
    for (String statement : text.split(";")) {
      if (!statement.isBlank()) {
        statements.add(statement.strip());
      }
    }
    return statements;
  }
}
