"""Every experiment of the papers, typed from them and not from the configurations.

  head      algorithm of a row, and where its number `mu` and its `tau` stand
  '-'       the knob is not used, or the paper has no figure
  balance   whether a client with its fair share gets no more: the MOON paper's code
  drop      whether the last partial batch is left out
  reported  per cent; several as the file tells them, in its order

Where a paper is silent, what stands here is the MOON paper's, or a choice that the head
of the file names: DCO-MOON's rates, and theta = 0.1 but in the rows that are called by
another.
"""

TABLE = """
file        variant                   data          model           algorithm mu    tau  beta balance rate   clients part rounds epochs augment   drop reported

moon_cvpr21 moon                      cifar10       moon_cnn        moon      5     0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  69.1 0.4 70.71
moon_cvpr21 fedavg                    cifar10       moon_cnn        fedavg    -     -    0.5  yes     0.01   10      1    100    10     crop_flip yes  66.3 0.5
moon_cvpr21 fedprox                   cifar10       moon_cnn        fedprox   0.01  -    0.5  yes     0.01   10      1    100    10     crop_flip yes  66.9 0.2 68.52
moon_cvpr21 scaffold                  cifar10       moon_cnn        scaffold  -     -    0.5  yes     0.01   10      1    100    10     crop_flip yes  66.6 0.2
moon_cvpr21 solo                      cifar10       moon_cnn        solo      -     -    0.5  yes     0.01   10      1    1      300    crop_flip yes  46.3 5.1
moon_cvpr21 mu_0.1                    cifar10       moon_cnn        moon      0.1   0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  -
moon_cvpr21 mu_1                      cifar10       moon_cnn        moon      1     0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  -
moon_cvpr21 mu_10                     cifar10       moon_cnn        moon      10    0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  -
moon_cvpr21 niid_bench_fedavg         cifar10       moon_cnn        fedavg    -     -    0.5  yes     0.01   10      1    50     10     crop_flip no   68.2
moon_cvpr21 niid_bench_fedprox        cifar10       moon_cnn        fedprox   0.01  -    0.5  yes     0.01   10      1    50     10     crop_flip no   67.9
moon_cvpr21 niid_bench_scaffold       cifar10       moon_cnn        scaffold  -     -    0.5  yes     0.01   10      1    50     10     crop_flip no   69.8
moon_cvpr21 cifar100_moon             cifar100      resnet50        moon      1     0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  67.5 0.4
moon_cvpr21 cifar100_fedavg           cifar100      resnet50        fedavg    -     -    0.5  yes     0.01   10      1    100    10     crop_flip yes  64.5 0.4

review      moon                      cifar10       moon_cnn        moon      0.1   0.5  0.5  yes     0.01   20      1    40     10     none      no   -
review      fedavg                    cifar10       moon_cnn        fedavg    -     -    0.5  yes     0.01   20      1    40     10     none      no   -
review      fedprox                   cifar10       moon_cnn        fedprox   0.01  -    0.5  yes     0.01   20      1    40     10     none      no   -
review      scaffold                  cifar10       moon_cnn        scaffold  -     -    0.5  yes     0.01   20      1    40     10     none      no   -
review      mu_0.01                   cifar10       moon_cnn        moon      0.01  0.5  0.5  yes     0.01   20      1    40     10     none      no   -
review      mu_1                      cifar10       moon_cnn        moon      1     0.5  0.5  yes     0.01   20      1    40     10     none      no   -
review      mu_5                      cifar10       moon_cnn        moon      5     0.5  0.5  yes     0.01   20      1    40     10     none      no   -

sa_moon     initial_temperature_0.5   cifar10       cnn_transformer sa_moon   5     0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  68.57
sa_moon     initial_temperature_1     cifar10       cnn_transformer sa_moon   5     1    0.5  yes     0.01   10      1    100    10     crop_flip yes  69.67
sa_moon     initial_temperature_1.5   cifar10       cnn_transformer sa_moon   5     1.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  69.31
sa_moon     initial_temperature_2     cifar10       cnn_transformer sa_moon   5     2    0.5  yes     0.01   10      1    100    10     crop_flip yes  69.36
sa_moon     same_batch                cifar10       cnn_transformer sa_moon   5     1    0.5  yes     0.01   10      1    100    10     crop_flip yes  69.67
sa_moon     tau_0.05                  cifar10       cnn_transformer moon      5     0.05 0.5  yes     0.01   10      1    100    10     crop_flip yes  66.82
sa_moon     tau_0.1                   cifar10       cnn_transformer moon      5     0.1  0.5  yes     0.01   10      1    100    10     crop_flip yes  67.04
sa_moon     tau_0.5                   cifar10       cnn_transformer moon      5     0.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  66.43 68.70
sa_moon     tau_1                     cifar10       cnn_transformer moon      5     1    0.5  yes     0.01   10      1    100    10     crop_flip yes  68.54
sa_moon     tau_1.5                   cifar10       cnn_transformer moon      5     1.5  0.5  yes     0.01   10      1    100    10     crop_flip yes  66.63 68.47
sa_moon     tau_2                     cifar10       cnn_transformer moon      5     2    0.5  yes     0.01   10      1    100    10     crop_flip yes  68.33

moonflower  default                   cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.001  10      1    100    10     none      no   47.51 1.29
moonflower  default_fedavg            cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.001  10      1    100    10     none      no   53.12 2.89
moonflower  beta_0.1                  cifar10       tutorial_cnn    moon      5     0.5  0.1  no      0.001  10      1    100    10     none      no   38.68 2.39
moonflower  beta_0.1_fedavg           cifar10       tutorial_cnn    fedavg    -     -    0.1  no      0.001  10      1    100    10     none      no   41.35 0.81
moonflower  beta_5                    cifar10       tutorial_cnn    moon      5     0.5  5    no      0.001  10      1    100    10     none      no   53.23 0.78
moonflower  beta_5_fedavg             cifar10       tutorial_cnn    fedavg    -     -    5    no      0.001  10      1    100    10     none      no   56.72 0.38
moonflower  sparse_0.05               cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.01   100     0.05 250    10     none      no   51.12 3.73
moonflower  sparse_0.05_fedavg        cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.01   100     0.05 250    10     none      no   50.27 3.38
moonflower  sparse_0.1                cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.01   100     0.1  250    10     none      no   53.98 2.48
moonflower  sparse_0.1_fedavg         cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.01   100     0.1  250    10     none      no   55.99 1.63
moonflower  sparse_0.2                cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.01   100     0.2  250    10     none      no   56.33 1.14
moonflower  sparse_0.2_fedavg         cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.01   100     0.2  250    10     none      no   56.50 1.67
moonflower  mu_0.1                    cifar10       tutorial_cnn    moon      0.1   0.5  0.5  no      0.001  10      1    100    10     none      no   -
moonflower  mu_1                      cifar10       tutorial_cnn    moon      1     0.5  0.5  no      0.001  10      1    100    10     none      no   -
moonflower  mu_3                      cifar10       tutorial_cnn    moon      3     0.5  0.5  no      0.001  10      1    100    10     none      no   -
moonflower  mu_7                      cifar10       tutorial_cnn    moon      7     0.5  0.5  no      0.001  10      1    100    10     none      no   -
moonflower  rate_0.01_fedavg          cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.01   10      1    100    10     none      no   10.0
moonflower  rate_0.01                 cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.01   10      1    100    10     none      no   10.0
moonflower  rate_0.005_fedavg         cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.005  10      1    100    10     none      no   -
moonflower  rate_0.0005_fedavg        cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.0005 10      1    100    10     none      no   -
moonflower  rate_0.0001_fedavg        cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.0001 10      1    100    10     none      no   -
moonflower  epochs_20                 cifar10       tutorial_cnn    moon      5     0.5  0.5  no      0.001  10      1    50     20     none      no   -
moonflower  epochs_20_fedavg          cifar10       tutorial_cnn    fedavg    -     -    0.5  no      0.001  10      1    50     20     none      no   -

dco_moon    mnist_dco_moon            mnist         dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   98.3
dco_moon    mnist_fedavg              mnist         dco_cnn         fedavg    -     -    0.5  no      0.01   10      1    100    10     none      no   97.9
dco_moon    mnist_fedprox             mnist         dco_cnn         fedprox   0.001 -    0.5  no      0.01   10      1    100    10     none      no   97.7
dco_moon    mnist_fedprox_mu_1        mnist         dco_cnn         fedprox   1     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    mnist_moon                mnist         dco_cnn         moon      1     0.5  0.5  no      0.01   10      1    100    10     none      no   98.1
dco_moon    mnist_solo                mnist         dco_cnn         solo      -     -    0.5  no      0.01   10      1    100    10     none      no   89.8
dco_moon    mnist_scaffold            mnist         dco_cnn         scaffold  -     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    mnist_sa_moon             mnist         dco_cnn         sa_moon   1     1    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    mnist_mu_0.1              mnist         dco_cnn         dco_moon  0.1   0.5  0.5  no      0.01   10      1    100    10     none      no   96.9
dco_moon    mnist_mu_1                mnist         dco_cnn         dco_moon  1     0.5  0.5  no      0.01   10      1    100    10     none      no   97.4
dco_moon    mnist_mu_10               mnist         dco_cnn         dco_moon  10    0.5  0.5  no      0.0005 10      1    100    10     none      no   98.0
dco_moon    mnist_theta_0.01          mnist         dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    mnist_theta_0.03          mnist         dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    mnist_theta_0.3           mnist         dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    fashion_mnist_dco_moon    fashion_mnist dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   85.4
dco_moon    fashion_mnist_fedavg      fashion_mnist dco_cnn         fedavg    -     -    0.5  no      0.01   10      1    100    10     none      no   79.8
dco_moon    fashion_mnist_fedprox     fashion_mnist dco_cnn         fedprox   0.001 -    0.5  no      0.01   10      1    100    10     none      no   81.9
dco_moon    fashion_mnist_fedprox_mu_1 fashion_mnist dco_cnn        fedprox   1     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    fashion_mnist_moon        fashion_mnist dco_cnn         moon      1     0.5  0.5  no      0.01   10      1    100    10     none      no   83.1
dco_moon    fashion_mnist_solo        fashion_mnist dco_cnn         solo      -     -    0.5  no      0.01   10      1    100    10     none      no   76.4
dco_moon    fashion_mnist_scaffold    fashion_mnist dco_cnn         scaffold  -     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    fashion_mnist_sa_moon     fashion_mnist dco_cnn         sa_moon   1     1    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    fashion_mnist_mu_0.1      fashion_mnist dco_cnn         dco_moon  0.1   0.5  0.5  no      0.01   10      1    100    10     none      no   81.7
dco_moon    fashion_mnist_mu_1        fashion_mnist dco_cnn         dco_moon  1     0.5  0.5  no      0.01   10      1    100    10     none      no   84.2
dco_moon    fashion_mnist_mu_10       fashion_mnist dco_cnn         dco_moon  10    0.5  0.5  no      0.0005 10      1    100    10     none      no   84.8
dco_moon    fashion_mnist_theta_0.01  fashion_mnist dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    fashion_mnist_theta_0.03  fashion_mnist dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    fashion_mnist_theta_0.3   fashion_mnist dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    cifar10_dco_moon          cifar10       dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   69.5
dco_moon    cifar10_fedavg            cifar10       dco_cnn         fedavg    -     -    0.5  no      0.01   10      1    100    10     none      no   65.2
dco_moon    cifar10_fedprox           cifar10       dco_cnn         fedprox   0.001 -    0.5  no      0.01   10      1    100    10     none      no   65.9
dco_moon    cifar10_fedprox_mu_1      cifar10       dco_cnn         fedprox   1     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    cifar10_moon              cifar10       dco_cnn         moon      1     0.5  0.5  no      0.01   10      1    100    10     none      no   67.8
dco_moon    cifar10_solo              cifar10       dco_cnn         solo      -     -    0.5  no      0.01   10      1    100    10     none      no   45.7
dco_moon    cifar10_scaffold          cifar10       dco_cnn         scaffold  -     -    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    cifar10_sa_moon           cifar10       dco_cnn         sa_moon   1     1    0.5  no      0.01   10      1    100    10     none      no   -
dco_moon    cifar10_mu_0.1            cifar10       dco_cnn         dco_moon  0.1   0.5  0.5  no      0.01   10      1    100    10     none      no   65.7
dco_moon    cifar10_mu_1              cifar10       dco_cnn         dco_moon  1     0.5  0.5  no      0.01   10      1    100    10     none      no   68.3
dco_moon    cifar10_mu_10             cifar10       dco_cnn         dco_moon  10    0.5  0.5  no      0.0005 10      1    100    10     none      no   68.6
dco_moon    cifar10_theta_0.01        cifar10       dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    cifar10_theta_0.03        cifar10       dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
dco_moon    cifar10_theta_0.3         cifar10       dco_cnn         dco_moon  5     0.5  0.5  no      0.001  10      1    100    10     none      no   -
"""  # noqa: E501

# What every experiment has.
COMMON = {
  'batch_size': 64,
  'client_weight': 'samples',
  'partition.name': 'dirichlet',
  'optimizer.name': 'sgd',
  'optimizer.momentum': 0.9,
  'optimizer.weight_decay': 1e-5,
  'optimizer.schedule': 'constant',
  'server_optimizer.name': 'sgd',
  'server_optimizer.learning_rate': 'auto',
  'server_optimizer.momentum': 0.0,
  'augmentation.padding': 'reflect',
  'data.limit': 0,
  'moon.negative': 'none',
  'moon.num_previous': 1,
  'moon.similarity_on': 'representation',
  'moon.frozen_mode': 'evaluation',
  'sa_moon.min_temperature': 0.001,
  'sa_moon.sigma': 0.005,
  'dco_moon.normalise': False,
  'dco_moon.initial': 'plain',
  'cnn_transformer.layers': 6,
  'cnn_transformer.heads': 8,
  'cnn_transformer.dropout': 0.1,
}


def rows() -> list[dict[str, str]]:
  """A mapping for each row, by the words of the first."""
  names, *lines = filter(None, TABLE.splitlines())
  names = names.split()
  last = len(names) - 1
  found = [line.split(maxsplit=last) for line in lines]
  return [dict(zip(names, cells, strict=True)) for cells in found]
